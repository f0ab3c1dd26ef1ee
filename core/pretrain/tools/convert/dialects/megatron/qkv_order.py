"""Order of the rows of query_key_value on one rank, which Megatron-LM's checkpoint version tells.

0: [q, k, v][head][channel]; 1.0: [head][channel][q, k, v]; 2.0 and 3.0: ours (fix_query_key_value_ordering in
megatron/training/checkpointing.py). Megatron-DeepSpeed of Microsoft has the first order again since 4 December 2024,
and still writes 3.0 (ParallelAttention.forward in megatron/model/transformer.py at 676a482c, which also added the
argument ds_sequence_parallel_fpdt).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.errors import CheckpointError
from pretrain.tools.convert.formats.megatron_weights import bounded
from pretrain.tools.convert.weights.qkv import from_channels_first, from_parts_first

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pretrain.recipe.sections.model import ModelSection
    from pretrain.tools.convert.weights.lazy_tensor import LazyTensor

_VERSIONS = (0.0, 1.0, 2.0, 3.0)
_FIRST_OF_OUR_ORDER = 2.0
_SINCE_PARTS_FIRST = "ds_sequence_parallel_fpdt"


def qkv_order(
    path: Path, version: object, args: Mapping[str, Any], model: ModelSection, ranks: int
) -> Callable[[LazyTensor], LazyTensor]:
    """Return the function that brings one rank's rows into our order.

    Args:
        path: the checkpoint, for errors.
        version: its `checkpoint_version`; 0 where it has none.
        args: arguments of the training.
        model: whose weights they are.
        ranks: number of tensor-parallel ranks.

    Raises:
        CheckpointError: there is no such version, or the model cannot have been saved with it.
    """
    if isinstance(version, bool) or not isinstance(version, int | float) or version not in _VERSIONS:
        msg = f"{path} has checkpoint_version {bounded(version)}; {', '.join(map(str, _VERSIONS))} are known."
        raise CheckpointError(msg)
    is_parts_first = version == 0 or _SINCE_PARTS_FIRST in args
    if version >= _FIRST_OF_OUR_ORDER and not is_parts_first:
        return lambda part: part
    heads = model.num_attention_heads
    if model.num_query_groups != heads or heads % ranks:
        msg = (
            f"{path} has query_key_value in an old order, which num_query_groups {model.num_query_groups} with "
            f"num_attention_heads {heads} on {ranks} ranks never had.\nCorrect them with --set model.KEY=VALUE."
        )
        raise CheckpointError(msg)
    function = from_parts_first if is_parts_first else from_channels_first
    return lambda part: function(part, heads // ranks)
