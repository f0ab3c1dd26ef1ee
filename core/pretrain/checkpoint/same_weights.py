"""Comparison of the weights' names of a model and a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from megatron.core import parallel_state

from pretrain.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from pretrain.checkpoint.contents import Saved

_SHOWN = 3


def require_same_weights(engine: Saved, directory: Path, names: Collection[str]) -> None:
    """Check that a checkpoint has all weights of the model, and no others; all ranks call it together.

    Args:
        engine: whose model it is.
        directory: of the checkpoint, for the error.
        names: of its weights, as ours.

    Raises:
        CheckpointError: it has not; the message names the first.
    """
    is_first = (parallel_state.get_data_parallel_rank(), parallel_state.get_tensor_model_parallel_rank()) == (0, 0)
    stages: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(stages, engine.state.weight_names() if is_first else set())
    ours = set[str]().union(*stages)
    sides = {"lacks": ours - set(names), "has, and the model lacks,": set(names) - ours}
    if found := [f"{has} {_shown(names)}" for has, names in sides.items() if names]:
        what = " and ".join(found)
        msg = f"{directory} is of another model: it {what}.\nChange the recipe, or choose another checkpoint."
        raise CheckpointError(msg)


def _shown(names: Collection[str]) -> str:
    first = ", ".join(sorted(names)[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    return f"{len(names)} weight{'s' * (len(names) > 1)} ({first})"
