"""Checks between ranks, in their order."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from pretrain.model.requests import compute_dtype
from pretrain.tools.doctor.files.checkpoint_folder import FolderProbe
from pretrain.tools.doctor.ranks.board import Board
from pretrain.tools.doctor.ranks.course import Course
from pretrain.tools.doctor.ranks.steps.device_steps import ClockStep, LinkStep, SpeedStep
from pretrain.tools.doctor.ranks.steps.file_steps import FolderStep, ReadStep, RemovalStep, SharedFolderStep
from pretrain.tools.doctor.ranks.steps.host_steps import CoresStep, RecipeStep
from pretrain.tools.doctor.ranks.steps.link_times import SIZES
from pretrain.tools.doctor.ranks.steps.own_step import OwnStep
from pretrain.tools.doctor.ranks.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.launch.start_checks import Start
    from pretrain.launch.world import World
    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe
    from pretrain.tools.doctor.finding import Finding
    from pretrain.tools.doctor.ranks.rank_outcome import Outcome
    from pretrain.tools.doctor.ranks.step import Step


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
    board: Board | None = None,
    timeout: float = 30.0,
    sizes: Sequence[int] = SIZES,
) -> Outcome:
    """Compare the ranks, and measure the links between them; every rank calls it after its own checks.

    Recipes, versions, token files and the checkpoint folder are compared here, since all ranks must have the same.
    A rank that does nothing new for `timeout` seconds is named with what it did last, and the command ends.

    The caller makes `board = Board(world, timeout)` before its own checks and calls `board.doing("kernel attention")`
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
        the merged findings on the rank that reports. Where `stuck` is set the process must end by `Outcome.leave`.
    """
    board = board or Board(world, timeout)
    probe = None if start is None else FolderProbe(start, world.rank)
    try:
        outcome = Course(board, _steps(recipe, plugins, board, device, own, probe, sizes, backend_name), device).run()
        return replace(outcome, stuck=outcome.stuck or world.world_size > 1)
    finally:
        if probe is not None and probe.run:
            with suppress(TimeoutError):  # the file system may have stopped to answer
                Worker(None).start(probe.remove).result(_REMOVAL)


def _steps(
    recipe: Recipe | None,
    plugins: Plugins | None,
    board: Board,
    device: torch.device | None,
    own: Sequence[Finding],
    probe: FolderProbe | None,
    sizes: Sequence[int],
    backend_name: str,
) -> list[Step]:
    steps: list[Step] = [OwnStep(own=own, has_device=device is not None, world_size=board.world.world_size)]
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
