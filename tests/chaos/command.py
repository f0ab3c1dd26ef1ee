"""The command line."""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import TYPE_CHECKING

import click

from chaos.all_faults import AllFaults, work_folder
from chaos.fault_list import faults_of
from chaos.tiny_training import RECIPE, TinyTraining, batch_for
from pretrain.cli.options import LocalPath
from pretrain.errors import LaunchError, PretrainError
from pretrain.exit_codes import ExitCode
from pretrain.launch.nodes.nodes import Nodes
from pretrain.launch.placement import make_placement
from pretrain.launch.processes.supervision import stop_signals_exit
from pretrain.launch.schedulers import current_world, own_node
from pretrain.plugins.host.discovery import find_backend
from pretrain.plugins.host.manager import load_alone
from pretrain.plugins.host.members import device_count
from pretrain.tools.doctor.finding import Finding, Verdict, as_lines, is_ok
from pretrain.tools.doctor.finding import as_json as json_of

if TYPE_CHECKING:
    from pathlib import Path

LEAST = 2
"""Ranks without which most faults have nobody who could notice them."""


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option("--backend", default="cpu", show_default=True, metavar="NAME", help="The device plugin.")
@click.option("--nproc", type=click.IntRange(min=1), metavar="N", help="Ranks.  [default: one a device, or two]")
@click.option("--folder", type=LocalPath(), metavar="DIR", help="Where it trains.  [default: a temporary folder]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, backend: str, nproc: int | None, folder: Path | None, as_json: bool) -> None:
    """Disturb a tiny training on this machine: kill and stop processes, damage checkpoints, and more.

    A line for each fault says how the training came through. The exit code is 1 where one is wrong, else 0.
    """
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")  # only the named backend loads its device's library
    try:
        sys.exit(try_faults(backend=backend, nproc=nproc, folder=folder, as_json=as_json))
    except PretrainError as error:
        click.echo(str(error), err=True)
        sys.exit(ExitCode.USER_ERROR)


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
            "This starts its own ranks, and is called on one of several ranks or nodes that another program started.\n"
            "Call it once, in the batch script, outside of them."
        )
        raise LaunchError(msg)
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
    devices = device_count(load_alone(find_backend(backend)))
    ranks = nproc or (LEAST if devices is None else devices)
    make_placement(RECIPE, (batch_for(ranks),), backend, nodes=Nodes(), nproc=ranks, world=None)  # the device is there
    if ranks < LEAST:
        msg = (
            f"Faults need at least {LEAST} ranks, here {ranks}: of most faults the other ranks take notice.\n"
            "Pass --nproc on a machine with more devices, or --backend cpu."
        )
        raise LaunchError(msg)
    return ranks, devices


def _one_node(ranks: int, devices: int | None) -> str:
    """Return the reason that two nodes of this machine cannot have the ranks; "" where they can."""
    if devices is not None:
        return "two nodes on one machine would take the same devices"
    return f"two nodes cannot have {ranks} ranks in equal parts" if ranks % 2 else ""
