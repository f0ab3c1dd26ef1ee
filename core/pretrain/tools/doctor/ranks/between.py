"""Runs the checks between ranks."""

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
from pretrain.tools.doctor.ranks.own_steps import CoresStep, RecipeStep
from pretrain.tools.doctor.ranks.rank_speed import SpeedStep
from pretrain.tools.doctor.ranks.step_sequence import CallThread, StepSequence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.launch.start_checks import Start
    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe
    from pretrain.tools.doctor.ranks.own_steps import OwnStep
    from pretrain.tools.doctor.ranks.status_board import StatusBoard
    from pretrain.tools.doctor.ranks.step import ExaminationStep
    from pretrain.tools.doctor.ranks.step_sequence import RankOutcome


_REMOVAL = 5.0
"""Seconds that the removal of files in the checkpoint folder may take."""


def examine_between(
    own: OwnStep,
    board: StatusBoard,
    plugins: Plugins | None,
    device: torch.device | None,
    recipe: Recipe | None,
    *,
    start: Start | None = None,
    backend_name: str = "cpu",
    sizes: Sequence[int] = SIZES,
) -> RankOutcome:
    """Compare the ranks, and measure the links between them; every rank calls it after its own checks.

    Recipes, versions, token files and the checkpoint folder are compared here, since all ranks must have the same.
    A rank that does nothing new for `board.timeout` seconds is named with what it did last, and the command ends.

    The caller makes the board before its own checks and calls `board.doing("kernel norm")` before each of them: a rank
    is silent if it neither says something nor finishes for so many seconds.

    Args:
        own: what this rank's own checks have found.
        board: of this rank.
        plugins: loaded, for this rank; None where they could not be, and then there is no device.
        device: this rank's device; None where it has none: links and speed are not measured then.
        recipe: None examines neither data nor a checkpoint folder, and only the group of all ranks, in fp32.
        start: the run that would start; None where neither its data nor its checkpoint folder is examined.
        backend_name: value of `--backend`.
        sizes: bytes of the collectives, growing; slow links leave the last ones out.

    Returns:
        the merged findings on the rank that reports. Where `stuck` is set the process must end by `RankOutcome.leave`.
    """
    is_several = board.world.world_size > 1
    probe = None if start is None else FolderProbe(start, board.world.rank)
    steps: list[ExaminationStep] = [own]
    if recipe is not None:
        steps.append(CoresStep(recipe))
    if recipe is not None and probe is not None:
        steps += [RecipeStep(recipe, backend_name, board)] if is_several else []
        steps += [ReadStep(recipe, board), FolderStep(recipe, board, probe), SharedFolderStep(board, probe)]
        steps.append(RemovalStep(board, probe))
    if is_several:
        dtype = compute_dtype(recipe) if recipe is not None else torch.float32
        steps += [ClockStep(board), SpeedStep(board, device, dtype), LinkStep(recipe, plugins, board, device, sizes)]
    try:
        outcome = StepSequence(board, steps, device).run()
        return replace(outcome, stuck=outcome.stuck or is_several)
    finally:
        if probe is not None and probe.run:
            with suppress(TimeoutError):  # the file system may have stopped to answer
                CallThread(None).start(probe.remove).result(_REMOVAL)
