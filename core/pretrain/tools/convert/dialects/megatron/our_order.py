"""Rows of Megatron-DeepSpeed's ranks in our order: query, key and value by heads, and the gate before the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.tools.convert.dialects.megatron.qkv_order import qkv_order
from pretrain.tools.convert.dialects.megatron.settings import gate_is_last
from pretrain.tools.convert.formats.megatron_weights import args_of
from pretrain.tools.convert.weights.tensor_parallel import gate_last, is_gated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pretrain.recipe.sections.model import ModelSection
    from pretrain.tools.convert.weights.lazy_tensor import LazyTensor


def in_our_order(
    path: Path, state: Mapping[str, Any], model: ModelSection, name: str, parts: Sequence[LazyTensor]
) -> Sequence[LazyTensor]:
    """Return the parts of the tensor-parallel ranks of one weight with their rows in our order.

    Args:
        path: the checkpoint, for errors.
        state: what its files tell beside the weights: `args` and `checkpoint_version`, 0 where there is none.
        model: whose weight it is.
        name: of ours.
        parts: of the ranks.

    Raises:
        CheckpointError: there is no such version, or the model cannot have been saved with it.
    """
    args = args_of(state)
    if ".linear_qkv." in name:
        order = qkv_order(path, state.get("checkpoint_version", 0), args, model, len(parts))
        return [order(part) for part in parts]
    if gate_is_last(args) and is_gated(name, model):
        return [gate_last(part) for part in parts]
    return parts
