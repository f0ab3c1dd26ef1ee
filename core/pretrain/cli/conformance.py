"""`pretrain conformance`: the conformance kit against a backend."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

import click

from pretrain.errors import BackendError


@click.command(name="conformance")
@click.option("--backend", metavar="NAME", required=True, help="The device plugin to test.")
@click.option("-k", "expression", metavar="EXPRESSION", default="", help="Only tests that match, as in pytest -k.")
@click.option("--kernels-only", is_flag=True, help="Skip the trainings against the cpu, which take a minute.")
@click.option("-v", "verbose", is_flag=True, help="One line for each test.")
def command(backend: str, expression: str, kernels_only: bool, verbose: bool) -> None:
    """Compare every kernel of a backend with the float64 reference, test its device, and train on it.

    The trainings are a few iterations on one device and on two, and resume from each other's checkpoints on the cpu.
    What each kernel takes, and why it declines the rest, is listed at the end. The exit code is 0 where nothing
    failed, 1 where something did, and 5 where no test was chosen.
    """
    if find_spec("pytest") is None:
        msg = "the conformance kit needs pytest.\nInstall it: pip install 'pretrain[testing]'"
        raise BackendError(msg)
    # Only this command needs torch and pytest.
    import pytest  # noqa: PLC0415

    from pretrain.plugins.host.readiness import require_device  # noqa: PLC0415
    from pretrain.testing.subject import load_subject  # noqa: PLC0415
    from pretrain.testing.suite import Chosen  # noqa: PLC0415

    require_device(load_subject(backend).plugins)
    arguments = ["--pyargs", "pretrain.testing.suite", "-c", os.devnull, "-p", "no:cacheprovider", "-rfs", "--tb=short"]
    wanted = [f"({expression})"] if expression else []
    wanted += ["not TestTraining"] if kernels_only else []
    arguments += ["-k", " and ".join(wanted)] if wanted else []
    sys.exit(pytest.main([*arguments, "-v" if verbose else "-q"], plugins=[Chosen(backend)]))
