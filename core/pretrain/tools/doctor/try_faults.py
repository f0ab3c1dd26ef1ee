"""`pretrain doctor --faults`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from pretrain.errors import LaunchError
from pretrain.exit_codes import ExitCode
from pretrain.launch.nodes.nodes import Nodes
from pretrain.launch.schedulers.detection import current_world, own_node

if TYPE_CHECKING:
    from pathlib import Path

LEAST = 2
"""Ranks without which most faults have nobody who could notice them."""


def try_faults(*, backend: str, nproc: int | None, folder: Path | None, as_json: bool) -> int:
    """Run the tiny training through all faults, print a finding for each as it ends, and return the exit code.

    Args:
        backend: value of `--backend`.
        nproc: ranks; None: one for each device, or two where processes are not bound to devices.
        folder: where the trainings run; None: the system's folder of temporary files.
        as_json: print one JSON object at the end instead of lines; at a signal, with what was found until then.

    Raises:
        LaunchError: another program has started this process as a rank, or there are too few ranks.
        BackendError: the backend is missing, broken or without a device.
        RunError: nothing can be written in the folder.
        SystemExit: a signal has asked for the end.
    """
    if current_world() is not None or own_node(wanted=False) is not None:
        msg = (
            "--faults starts its own ranks, and this is one of several ranks or nodes that another program started.\n"
            "Call it once, in the batch script, outside of them."
        )
        raise LaunchError(msg)
    from pretrain.launch.processes.stop_signals import stop_signals_exit  # noqa: PLC0415
    from pretrain.tools.doctor.faults.all_faults import AllFaults, work_folder  # noqa: PLC0415  --help needs none of these
    from pretrain.tools.doctor.faults.fault_list import faults_of  # noqa: PLC0415
    from pretrain.tools.doctor.faults.tiny_training import TinyTraining  # noqa: PLC0415
    from pretrain.tools.doctor.finding import Finding, Verdict  # noqa: PLC0415
    from pretrain.tools.doctor.findings_text import as_json as json_of  # noqa: PLC0415
    from pretrain.tools.doctor.findings_text import as_lines, is_ok  # noqa: PLC0415

    ranks, devices = _ranks(backend, nproc)
    faults, findings = faults_of(ranks), []
    width = max(len(fault.name) for fault in faults)
    try:
        with stop_signals_exit(), work_folder(folder) as work:
            training = TinyTraining(folder=work, backend=backend, nproc=ranks)
            training.prepare()
            for finding in AllFaults(training=training, faults=faults, one_node=_one_node(ranks, devices)).run():
                findings.append(finding)
                if not as_json:
                    click.echo(as_lines(finding, width))
    except SystemExit:
        text = "ended by a signal before every fault was tried"
        findings.append(Finding(check="faults", verdict=Verdict.WRONG, text=text))
        click.echo(json_of(findings) if as_json else as_lines(findings[-1], width))
        raise
    if as_json:
        click.echo(json_of(findings))
    else:
        count = Counter(finding.verdict for finding in findings)
        click.echo(", ".join(f"{count[verdict]} {verdict}" for verdict in Verdict))
    return ExitCode.COMPLETE if is_ok(findings) else ExitCode.FAILURE


def _ranks(backend: str, nproc: int | None) -> tuple[int, int | None]:
    """Return the number of ranks, and that of devices; None where processes are not bound to devices."""
    from pretrain.launch.rank_placement import make_placement  # noqa: PLC0415
    from pretrain.plugins.host.discovery import find_backend  # noqa: PLC0415
    from pretrain.plugins.host.manager import load_alone  # noqa: PLC0415
    from pretrain.plugins.host.members import device_count  # noqa: PLC0415
    from pretrain.tools.doctor.faults.tiny_training import RECIPE, batch_for  # noqa: PLC0415

    devices = device_count(load_alone(find_backend(backend)))
    ranks = nproc or (LEAST if devices is None else devices)
    make_placement(RECIPE, (batch_for(ranks),), backend, nodes=Nodes(), nproc=ranks, world=None)  # the device is there
    if ranks < LEAST:
        msg = (
            f"--faults needs at least {LEAST} ranks, here {ranks}: of most faults the other ranks take notice.\n"
            "Pass --nproc on a machine with more devices, or --backend cpu."
        )
        raise LaunchError(msg)
    return ranks, devices


def _one_node(ranks: int, devices: int | None) -> str:
    """Return the reason that two nodes of this machine cannot have the ranks; "" where they can."""
    if devices is not None:
        return "two nodes on one machine would take the same devices"
    return f"two nodes cannot have {ranks} ranks in equal parts" if ranks % 2 else ""
