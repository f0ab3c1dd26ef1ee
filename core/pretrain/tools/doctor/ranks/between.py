"""Checks between ranks, in their order."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from pretrain.model.requests import compute_dtype
from pretrain.tools.doctor.ranks.checkpoint_folder import FolderProbe, FolderStep, RemovalStep, SharedFolderStep
from pretrain.tools.doctor.ranks.clocks import ClockStep
from pretrain.tools.doctor.ranks.data_speed import ReadStep
from pretrain.tools.doctor.ranks.link_times import SIZES
from pretrain.tools.doctor.ranks.links import LinkStep
from pretrain.tools.doctor.ranks.own_steps import CoresStep, OwnStep, RecipeStep
from pretrain.tools.doctor.ranks.rank_speed import SpeedStep
from pretrain.tools.doctor.ranks.status_board import StatusBoard
from pretrain.tools.doctor.ranks.step_sequence import CallThread, StepSequence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.launch.run_directory.start_checks import Start
    from pretrain.launch.world import World
    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe
    from pretrain.tools.doctor.finding import Finding
    from pretrain.tools.doctor.ranks.step import ExaminationStep
    from pretrain.tools.doctor.ranks.step_sequence import RankOutcome


_REMOVAL = 5.0
"""Seconds that the removal of files in the checkpoint folder may take."""


def examine_between(
    recipe: Recipe | None,
    plugins: Plugins | None,
    world: World,
    device: torch.device | None,
    own: Sequence[Finding],
    *,
    start: Start | None = None,
    backend_name: str = "cpu",
    board: StatusBoard | None = None,
    timeout: float = 30.0,
    sizes: Sequence[int] = SIZES,
) -> RankOutcome:
    """Compare the ranks, and measure the links between them; every rank calls it after its own checks.

    Recipes, versions, token files and the checkpoint folder are compared here, since all ranks must have the same.
    A rank that does nothing new for `timeout` seconds is named with what it did last, and the command ends.

    The caller makes `board = StatusBoard(world, timeout)` before its own checks and calls `board.doing("kernel norm")`
    before each of them: a rank is silent if it neither says something nor finishes for `timeout` seconds.

    Args:
        recipe: None examines neither data nor a checkpoint folder, and only the group of all ranks, in fp32.
        plugins: loaded, for this rank; None where they could not be, and then there is no device.
        world: this rank's place.
        device: this rank's device; None where it has none: links and speed are not measured then.
        own: findings of this rank's own checks.
        start: the run that would start; None where neither its data nor its checkpoint folder is examined.
        backend_name: value of `--backend`.
        board: made by the caller before its own checks; None: made here.
        timeout: seconds after which a rank is silent.
        sizes: bytes of the collectives, growing; slow links leave the last ones out.

    Returns:
        the merged findings on the rank that reports. Where `stuck` is set the process must end by `RankOutcome.leave`.
    """
    board = board or StatusBoard(world, timeout)
    probe = None if start is None else FolderProbe(start, world.rank)
    try:
        outcome = StepSequence(
            board, _steps(recipe, plugins, board, device, own, probe, sizes, backend_name), device
        ).run()
        return replace(outcome, stuck=outcome.stuck or world.world_size > 1)
    finally:
        if probe is not None and probe.run:
            with suppress(TimeoutError):  # the file system may have stopped to answer
                CallThread(None).start(probe.remove).result(_REMOVAL)


def _steps(
    recipe: Recipe | None,
    plugins: Plugins | None,
    board: StatusBoard,
    device: torch.device | None,
    own: Sequence[Finding],
    probe: FolderProbe | None,
    sizes: Sequence[int],
    backend_name: str,
) -> list[ExaminationStep]:
    steps: list[ExaminationStep] = [OwnStep(own=own, has_device=device is not None, world_size=board.world.world_size)]
    if recipe is not None:
        steps.append(CoresStep(recipe))
    if recipe is not None and probe is not None:
        if board.world.world_size > 1:
            steps.append(RecipeStep(recipe, backend_name, board))
        steps += [ReadStep(recipe, board), FolderStep(recipe, board, probe), SharedFolderStep(board, probe)]
        steps += [RemovalStep(board, probe)]
    if board.world.world_size > 1:
        dtype = compute_dtype(recipe) if recipe is not None else torch.float32
        steps += [ClockStep(board), SpeedStep(board, device, dtype), LinkStep(recipe, plugins, board, device, sizes)]
    return steps
