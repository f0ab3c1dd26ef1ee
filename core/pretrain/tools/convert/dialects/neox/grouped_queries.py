"""Order of the rows of query_key_value with grouped queries in GPT-NeoX; without them it is ours.

A rank holds [its queries; its keys; its values] since 14 November 2024. Before, it held for each of its heads the
head's query, and a slice of its keys and of its values as long as the head's share of them (gqa_project in
megatron/model/transformer.py before and after 96c242eb). The files do not tell the date: the names of the MLP changed
on 7 September 2024, so those of a model from between are taken for later ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.convert.weights.lazy_tensor import joined, narrowed, part_of
from pretrain.tools.convert.weights.qkv import by_blocks, fused, separate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.recipe.sections.model import ModelSection
    from pretrain.tools.convert.weights.lazy_tensor import LazyTensor


def from_ranks(parts: Sequence[LazyTensor], model: ModelSection, *, is_sliced: bool) -> LazyTensor:
    """Return the whole weight in our order.

    Args:
        parts: of the ranks.
        model: with fewer query groups than heads, both divisible by the number of ranks.
        is_sliced: whether the order is that of before 14 November 2024.
    """
    heads, groups = model.num_attention_heads // len(parts), model.num_query_groups // len(parts)
    if is_sliced:
        parts = [_without_slices(part, heads, groups) for part in parts]
    queries, keys = heads * model.head_size, groups * model.head_size
    places = ((0, queries), (queries, keys), (queries + keys, keys))
    query, key, value = (joined([narrowed(part, 0, *place) for part in parts], 0) for place in places)
    return fused(query, key, value, model)


def to_rank(whole: LazyTensor, rank: int, ranks: int, model: ModelSection) -> LazyTensor:
    """Return one rank's rows of a weight in our order."""
    return joined([part_of(each, 0, rank, ranks) for each in separate(whole, model)], 0)


def _without_slices(part: LazyTensor, heads: int, groups: int) -> LazyTensor:
    """Return [queries; keys; values]; a slice of keys is 1 / share of the rows of a query."""
    share = heads // groups
    slots = (range(share), [share], [share + 1])
    order = [head * (share + 2) + slot for slots_of_part in slots for head in range(heads) for slot in slots_of_part]
    return by_blocks(part, order, part.shape[0] // len(order))
