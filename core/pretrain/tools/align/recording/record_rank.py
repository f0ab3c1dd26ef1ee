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
    """Record steps as one rank of `world`; called once per process, after `pretrain.launch` has set its environment."""
    plugins = ready(recipe, backend_name)
    from pretrain.tools.align.recording.recorder import record_steps  # noqa: PLC0415  imports megatron.core: after the bridge
    from pretrain.training.rank_setup import deterministic  # noqa: PLC0415

    with deterministic(is_wanted=recipe.train.deterministic_mode), naming_full_disk(folder):
        record_steps(recipe, plugins, world, Path(folder), steps=steps, positions=positions, checkpoint=checkpoint)
