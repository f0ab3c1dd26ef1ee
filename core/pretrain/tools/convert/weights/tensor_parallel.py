"""Division of our weights among tensor-parallel ranks.

ColumnParallelLinear and VocabParallelEmbedding divide the rows, RowParallelLinear the columns and not the bias
(megatron/core/tensor_parallel/layers.py). A rank of swiglu's linear_fc1 holds [its gate rows; its up rows].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.convert.formats.megatron_weights import divided_dimension
from pretrain.tools.convert.weights.lazy_tensor import averaged, joined, part_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.recipe.sections.model import ModelSection
    from pretrain.tools.convert.weights.lazy_tensor import LazyTensor


def merged(name: str, parts: Sequence[LazyTensor], model: ModelSection) -> LazyTensor:
    """Return a whole weight; what every rank has whole is averaged where the ranks differ.

    Args:
        name: ours.
        parts: one for each rank, in their order.
        model: whose weight it is.

    Raises:
        CheckpointError: the parts do not belong together.
    """
    dimension = divided_dimension(name)
    if dimension is None:
        return averaged(parts)
    if is_gated(name, model):
        return joined([part_of(part, 0, half, 2) for half in range(2) for part in parts], 0)
    return joined(parts, dimension)


def part_of_rank(name: str, whole: LazyTensor, rank: int, ranks: int, model: ModelSection) -> LazyTensor:
    """Return one rank's part of a weight.

    Raises:
        CheckpointError: the weight cannot be divided among so many ranks.
    """
    dimension = divided_dimension(name)
    if dimension is None or ranks == 1:
        return whole
    if is_gated(name, model):
        return joined([part_of(part_of(whole, 0, half, 2), 0, rank, ranks) for half in range(2)], 0)
    return part_of(whole, dimension, rank, ranks)


def gate_last(part: LazyTensor) -> LazyTensor:
    """Return one rank's part of a gated weight with its halves exchanged: GPT-NeoX's have [up rows; gate rows]."""
    return joined([part_of(part, 0, half, 2) for half in (1, 0)], 0)


def is_gated(name: str, model: ModelSection) -> bool:
    """Say whether the weight consists of a gate's and an up projection's rows."""
    return model.activation == "swiglu" and ".mlp.linear_fc1." in name
