"""Entry point of the doctor on a rank: its own checks, those between ranks, the output."""

from __future__ import annotations

import time
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
import torch

from pretrain.exit_codes import ExitCode
from pretrain.launch.processes.rank import claim_report, note_end, note_report
from pretrain.launch.start_checks import Start
from pretrain.model.requests import compute_dtype
from pretrain.tools.doctor.finding import Finding, as_text, failed, is_ok
from pretrain.tools.doctor.finding import as_json as json_of
from pretrain.tools.doctor.own_checks import OwnChecks, examine_start
from pretrain.tools.doctor.ranks.checkpoint_folder import FolderProbe, folder_steps
from pretrain.tools.doctor.ranks.link_times import SIZES
from pretrain.tools.doctor.ranks.links import link_step
from pretrain.tools.doctor.ranks.node_steps import clock_step, read_step
from pretrain.tools.doctor.ranks.own_steps import cores_step, own_step, recipe_step, speed_step
from pretrain.tools.doctor.ranks.status_board import StatusBoard
from pretrain.tools.doctor.ranks.step_sequence import CallThread, StepSequence

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pretrain.launch.run_directory import Resume
    from pretrain.launch.world import World
    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe
    from pretrain.tools.doctor.ranks.step_sequence import ExaminationStep, RankOutcome

NOTE = (
    "none given: the kernels of GPT-2 345M in bf16 are tried; no token files, tokenizer or checkpoint folder are "
    "looked at"
)
"""Text of the finding where the user gives no recipe."""
TIMEOUT = 30.0  # seconds after which a rank that says nothing is named


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
    """Examine this rank and, with the others, what is between them; the rank that reports prints. Called once."""
    # SystemExit 1 is raised on the rank that reports where a finding is wrong.
    board = StatusBoard(world, timeout)
    start = Start(recipe=recipe, run_dir=None if run_dir is None else Path(run_dir), resume=resume)
    own = OwnChecks(recipe, backend_name, world, board.doing)
    if is_example:
        own.findings.append(Finding.ok("recipe", NOTE))

    def check() -> None:
        if not is_example:
            own.findings += examine_start(start, world, board.doing)
        own.run()

    unended = run_watched(check, board)
    device = None if unended else own.device  # with a check that hangs no further call of the device is tried
    first = own_step(
        [*own.findings, *unended], has_device=device is not None, world_size=world.world_size, kernels=own.kernels
    )
    files = None if is_example else start
    outcome = examine_between(first, board, own.plugins, device, recipe, start=files, backend_name=backend_name)
    code = _report(outcome, board, as_json=as_json) if outcome.reports and claim_report() else ExitCode.COMPLETE
    if unended or outcome.stuck:
        if not code:
            note_end()
        outcome.leave(code)
    if code:
        raise SystemExit(code)


def _report(outcome: RankOutcome, board: StatusBoard, *, as_json: bool) -> int:
    click.echo(json_of(outcome.findings) if as_json else as_text(outcome.findings))
    if is_ok(outcome.findings):
        return ExitCode.COMPLETE
    with suppress(OSError):  # then the launcher shows this rank's exit code too
        note_report(board.world.rank)
    return ExitCode.FAILURE


_PERIOD = 0.1


def run_watched(call: Callable[[], None], board: StatusBoard) -> list[Finding]:
    """Call it in a thread until it has ended, or has said nothing for the board's timeout, which is a finding."""
    # It says what it does by `board.doing` before anything that may take seconds. Whatever it raises is raised here,
    # but for the end of the process that a library asked for: a finding.
    future = CallThread(None).start(call)
    while not wait([future], _PERIOD).done:
        board.beat()
        if time.monotonic() - board.spoken > board.timeout:
            text = f"{board.words} did not finish within {board.timeout:g} s; the checks after it were skipped"
            remedy = "A device, a driver or a file system does not answer; `py-spy dump --pid` shows which."
            return [Finding.wrong(board.words, text, remedy)]
    error = future.exception()
    if isinstance(error, SystemExit):
        return [failed(board.words, error)]
    if error is not None:
        raise error
    return []


_REMOVAL = 5.0  # seconds that the removal of files in the checkpoint folder may take


def examine_between(
    own: ExaminationStep,
    board: StatusBoard,
    plugins: Plugins | None,
    device: torch.device | None,
    recipe: Recipe | None,
    *,
    start: Start | None = None,
    backend_name: str = "cpu",
    sizes: Sequence[int] = SIZES,
) -> RankOutcome:
    """Compare the ranks, and measure the links between them; every rank calls it after its own checks."""
    # A rank that does nothing new for `board.timeout` seconds is named with what it did last, and the command ends. A
    # rank without a `device` leaves out links and speed; without `start` neither data nor checkpoint folder is
    # examined.
    is_several = board.world.world_size > 1
    probe = None if start is None else FolderProbe(start, board.world.rank)
    steps = [own]
    if recipe is not None:
        steps.append(cores_step(recipe))
    if recipe is not None and probe is not None:
        steps += [recipe_step(recipe, backend_name, board)] if is_several else []
        steps += [read_step(recipe, board), *folder_steps(recipe, board, probe)]
    if is_several:
        dtype = compute_dtype(recipe) if recipe is not None else torch.float32
        links = link_step(recipe, plugins, board, device, sizes)
        steps += [clock_step(board), speed_step(board, device, dtype), links]
    try:
        outcome = StepSequence(board, steps, device).run()
        return replace(outcome, stuck=outcome.stuck or is_several)
    finally:
        if probe is not None and probe.run:
            with suppress(TimeoutError):  # the file system may have stopped to answer
                CallThread(None).start(probe.remove).result(_REMOVAL)
