"""Entry point of the doctor on a rank: its own checks, those between ranks, the output."""

from __future__ import annotations

import time
from concurrent.futures import wait
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pretrain.errors import BackendError
from pretrain.exit_codes import ExitCode
from pretrain.launch.processes.rank import claim_report, note_end, note_report
from pretrain.launch.start_checks import Start
from pretrain.plugins.host import discovery
from pretrain.plugins.host.importing import load_plugin
from pretrain.plugins.host.manager import assemble, load
from pretrain.tools.doctor.finding import Finding, Verdict, as_text, failed, is_ok
from pretrain.tools.doctor.finding import as_json as json_of
from pretrain.tools.doctor.own_checks import OwnChecks, examine_start
from pretrain.tools.doctor.ranks.between import examine_between
from pretrain.tools.doctor.ranks.own_steps import OwnStep
from pretrain.tools.doctor.ranks.status_board import StatusBoard
from pretrain.tools.doctor.ranks.step_sequence import CallThread

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from pretrain.launch.run_directory import Resume
    from pretrain.launch.world import World
    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe
    from pretrain.tools.doctor.ranks.step_sequence import RankOutcome


NOTE = (
    "none given: the kernels of GPT-2 345M in bf16 are tried; no token files, tokenizer or checkpoint folder are "
    "looked at"
)
"""Text of the finding where the user gives no recipe."""

TIMEOUT = 30.0
"""Seconds after which a rank that says nothing is named."""


def examine(
    recipe: Recipe,
    *,
    backend_name: str,
    world: World,
    run_dir: str | None = None,
    resume: Resume = "no",
    is_example: bool,
    as_json: bool,
    timeout: float = TIMEOUT,
) -> None:
    """Examine this rank and, with the others, what is between them; the rank that reports prints. Called once.

    Args:
        recipe: that is to be trained.
        backend_name: value of `--backend`.
        world: this rank's place.
        run_dir: value of `--run-dir`; None for a new one.
        resume: value of `--resume`.
        is_example: the user gave no recipe: its files are not looked at.
        as_json: print one JSON object instead of lines.
        timeout: seconds after which a rank that says nothing is named.

    Raises:
        SystemExit: 1, on the rank that reports, where a finding is wrong.
        BackendError: the backend cannot be imported.
    """
    board = StatusBoard(world, timeout)
    start = Start(recipe=recipe, run_dir=None if run_dir is None else Path(run_dir), resume=resume)
    own = _OwnPart(start, backend_name, board, with_files=not is_example)
    if is_example:
        own.findings.append(Finding(check="recipe", verdict=Verdict.OK, text=NOTE))
    unended = run_watched(own.run, board)
    device = None if unended else own.device  # with a check that hangs no further call of the device is tried
    found = OwnStep(
        own=[*own.findings, *unended],
        has_device=device is not None,
        world_size=world.world_size,
        kernels=dict(own.kernels),
    )
    start_of_files = None if is_example else start
    outcome = examine_between(
        found, board, own.plugins, device, recipe, start=start_of_files, backend_name=backend_name
    )
    code = _report(outcome, board, as_json=as_json) if outcome.reports and claim_report() else ExitCode.COMPLETE
    if unended or outcome.stuck:
        if not code:
            note_end()
        outcome.leave(code)
    if code:
        raise SystemExit(code)


def _report(outcome: RankOutcome, board: StatusBoard, *, as_json: bool) -> int:
    """Print the findings; return the exit code."""
    click.echo(json_of(outcome.findings) if as_json else as_text(outcome.findings))
    if is_ok(outcome.findings):
        return ExitCode.COMPLETE
    with suppress(OSError):  # then the launcher shows this rank's exit code too
        note_report(board.world.rank)
    return ExitCode.FAILURE


class _OwnPart:
    """Checks of one rank by itself, and their results by now."""

    def __init__(self, start: Start, backend_name: str, board: StatusBoard, *, with_files: bool) -> None:
        self.findings: list[Finding] = []
        self.kernels: dict[str, str] = {}
        self.plugins: Plugins | None = None
        self.device: torch.device | None = None
        self._start, self._backend_name, self._board, self._with_files = start, backend_name, board, with_files

    def run(self) -> None:
        world, doing = self._board.world, self._board.doing
        if self._with_files:
            self.findings += examine_start(self._start, world, doing)
        self._board.doing("import of the backend")
        self.plugins, broken = _plugins(self._backend_name)
        self.findings += broken
        own = OwnChecks(self._start.recipe, self.plugins, world, doing, findings=self.findings, kernels=self.kernels)
        own.run()
        self.device = own.device


def _plugins(backend_name: str) -> tuple[Plugins, list[Finding]]:
    """Return the plugins; where one that brings kernels is broken, those without them and a finding."""
    try:
        return load(backend_name), []
    except BackendError as error:
        backend, reference = (load_plugin(each) for each in (discovery.find_backend(backend_name), discovery.REFERENCE))
        return assemble([], backend, reference), [failed("plugins", error)]


_PERIOD = 0.1


def run_watched(call: Callable[[], None], board: StatusBoard) -> list[Finding]:
    """Call it in a thread; return when it has ended, or has said nothing for the board's `timeout`.

    Args:
        call: says what it does by `board.doing` before anything that may take seconds.
        board: of this rank, which says all the time that the rank lives.

    Returns:
        nothing where it has ended; else one finding that is wrong and says what did not end.

    Raises:
        Exception: whatever `call` raises, but for the end of the process that a library asked for: a finding.
    """
    future = CallThread(None).start(call)
    while not wait([future], _PERIOD).done:
        board.beat()
        if time.monotonic() - board.spoken > board.timeout:
            return [_without_end(board.words, board.timeout)]
    error = future.exception()
    if isinstance(error, SystemExit):
        return [failed(board.words, error)]
    if error is not None:
        raise error
    return []


def _without_end(doing: str, timeout: float) -> Finding:
    return Finding(
        check=doing,
        verdict=Verdict.WRONG,
        text=f"{doing} did not finish within {timeout:g} s; the checks after it were skipped",
        remedy="A device, a driver or a file system does not answer; `py-spy dump --pid` shows which.",
    )
