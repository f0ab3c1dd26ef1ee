"""Order of the rows of query_key_value with grouped queries in GPT-NeoX; without them it is ours.

A rank holds [its queries; its keys; its values] since 14 November 2024. Before, it held for each of its heads the
head's query, and a slice of its keys and of its values as long as the head's share of them (gqa_project in
megatron/model/transformer.py before and after 96c242eb). The files do not tell the date: the names of the MLP changed
on 7 September 2024, so those of a model from between are taken for later ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pretrain.checkpoint.weights.lazy_tensor import joined, narrowed, part_of, rearranged
from pretrain.checkpoint.weights.qkv import fused, separate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from pretrain.checkpoint.weights.lazy_tensor import LazyTensor
    from pretrain.recipe.sections.model import ModelSection


def from_ranks(parts: Sequence[LazyTensor], model: ModelSection, *, is_sliced: bool) -> LazyTensor:
    """Return the whole weight in our order.

    Args:
        parts: of the ranks.
        model: with fewer query groups than heads, both divisible by the number of ranks.
        is_sliced: whether the order is that of before 14 November 2024.
    """
    heads, groups = model.num_attention_heads // len(parts), model.num_query_groups // len(parts)
    if is_sliced:
        parts = [rearranged(part, lambda tensor: _without_slices(tensor, heads, groups)) for part in parts]
    queries, keys = heads * model.head_size, groups * model.head_size
    places = ((0, queries), (queries, keys), (queries + keys, keys))
    query, key, value = (joined([narrowed(part, 0, *place) for part in parts], 0) for place in places)
    return fused(query, key, value, model)


def to_rank(whole: LazyTensor, rank: int, ranks: int, model: ModelSection) -> LazyTensor:
    """Return one rank's rows of a weight in our order."""
    return joined([part_of(each, 0, rank, ranks) for each in separate(whole, model)], 0)


def _without_slices(tensor: Tensor, heads: int, groups: int) -> Tensor:
    rest = tensor.shape[1:]
    channels = tensor.shape[0] // (heads + 2 * groups)
    share = channels * groups // heads
    slices = torch.split(tensor.view(heads, channels + 2 * share, *rest), [channels, share, share], 1)
    return torch.cat([each.reshape(-1, *rest) for each in slices])
