"""Entry point of a rank that records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.tools.align.disk_space import naming_full_disk
from pretrain.training.run import ready

if TYPE_CHECKING:
    from pretrain.launch.world import World
    from pretrain.recipe import Recipe


def record(
    recipe: Recipe,
    *,
    backend_name: str,
    world: World,
    folder: str,
    steps: int,
    positions: int,
    checkpoint: str | None,
) -> None:
    """Record steps as one rank of `world`; called once per process, after `pretrain.launch` has set its environment.

    Args:
        recipe: as `pretrain.tools.align.side.Side.overrides` changes it.
        backend_name: value of `--backend`.
        world: this rank's place.
        folder: for the recording, which exists and is empty.
        steps: to take.
        positions: of each sequence that are recorded at the most.
        checkpoint: whose weights are taken; None: those of `train.seed`.

    Raises:
        PretrainError: a user error, or a full disk.
    """
    plugins = ready(recipe, backend_name)
    from pretrain.tools.align.recording.recorder import assembled  # noqa: PLC0415  imports megatron.core: after the bridge
    from pretrain.training.rank_setup import deterministic  # noqa: PLC0415

    with (
        deterministic(is_wanted=recipe.train.deterministic_mode),
        naming_full_disk(folder),
        assembled(recipe, plugins, world, Path(folder), positions=positions, checkpoint=checkpoint) as recording,
    ):
        recording.run(steps)
