"""`pretrain conformance`: the conformance kit against a backend."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

import click

from pretrain.cli.words import backend_names
from pretrain.conformance.cases import TIERS
from pretrain.errors import BackendError


@click.command(name="conformance")
@click.option(
    "--backend", metavar="NAME", required=True, help="The device plugin to test.", shell_complete=backend_names
)
@click.option("-k", "expression", metavar="EXPRESSION", default="", help="Run only tests that match, as in pytest -k.")
@click.option(
    "--tier", "tiers", type=click.Choice(list(TIERS)), multiple=True, help="Run only this tier; may be repeated."
)
@click.option("--kernels-only", is_flag=True, help="The same as --tier device --tier kernels.")
@click.option("-v", "verbose", is_flag=True, help="Print one line for each test.")
def command(backend: str, expression: str, tiers: tuple[str, ...], kernels_only: bool, verbose: bool) -> None:
    """Test a backend's device, compare its kernels with the float64 reference, and train on it.

    There are three tiers, and the run stops after the first that fails: `device` (torch's module, memory, copies, two
    ranks), `kernels`, and `training`: a few iterations on one device and on two, and on the cpu from their checkpoints
    and back. At the end it lists what each kernel takes, why it declines the rest, and the time of each tier. The exit
    code is 0 if nothing failed, 1 if something did, and 5 if no test was chosen.
    """
    if find_spec("pytest") is None:
        msg = "the conformance kit needs pytest.\nInstall it: pip install 'pretrain[conformance]'"
        raise BackendError(msg)
    # Only this command needs torch and pytest.
    import pytest  # noqa: PLC0415

    from pretrain.conformance.subject import load_subject  # noqa: PLC0415
    from pretrain.conformance.suite import Chosen, TierRun  # noqa: PLC0415
    from pretrain.plugins.host.members import require_device  # noqa: PLC0415

    require_device(load_subject(backend).plugins)
    arguments = f"--pyargs pretrain.conformance.suite -c {os.devnull} -p no:cacheprovider -rfs --tb=short".split()
    arguments += ["-k", expression] if expression else []
    if kernels_only and "training" in tiers:
        msg = "--kernels-only leaves out --tier training."
        raise click.UsageError(msg)
    chosen = [tier for tier in tiers or TIERS if not (kernels_only and tier == "training")]
    sys.exit(pytest.main([*arguments, "-v" if verbose else "-q"], plugins=[Chosen(backend), TierRun(chosen)]))
