"""Orders of the rows of a fused query-key-value weight, [rows] or [rows, hidden].

Ours is megatron-core's: for each query group its queries, its key, its value, each of `kv_channels` rows. With as many
groups as heads this is [head][q, k, v][channel], the order of GPT-NeoX and of Megatron-LM since checkpoint version 2.0.

With grouped queries a rank of GPT-NeoX holds [its queries; its keys; its values] since 14 November 2024. Before, it
held for each of its heads the head's query, and a slice of its keys and of its values as long as the head's share of
them (gqa_project in megatron/model/transformer.py before and after 96c242eb). The files do not tell the date: the names
of the MLP changed on 7 September 2024, so those of a model from between are taken for later ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from pretrain.tools.convert.lazy_tensor import joined, narrowed, part_of, rearranged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from pretrain.recipe.sections.model import ModelSection
    from pretrain.tools.convert.lazy_tensor import LazyTensor


def from_parts_first(weight: LazyTensor, heads: int) -> LazyTensor:
    """Return our order of [q, k, v][head][channel]: Megatron-LM's checkpoint version 0, and GPT-2 of Hugging Face."""
    order = [part * heads + head for head in range(heads) for part in range(3)]
    return by_blocks(weight, order, weight.shape[0] // len(order))


def to_parts_first(weight: LazyTensor, heads: int) -> LazyTensor:
    """Return [q, k, v][head][channel] of our order."""
    order = [head * 3 + part for part in range(3) for head in range(heads)]
    return by_blocks(weight, order, weight.shape[0] // len(order))


def from_channels_first(weight: LazyTensor, heads: int) -> LazyTensor:
    """Return our order of [head][channel][q, k, v]: Megatron-LM's checkpoint version 1.0."""

    def function(tensor: Tensor) -> Tensor:
        view = tensor.view(heads, -1, 3, *tensor.shape[1:])
        return view.transpose(1, 2).reshape(tensor.shape)

    return rearranged(weight, function)


def fused(query: LazyTensor, key: LazyTensor, value: LazyTensor, model: ModelSection) -> LazyTensor:
    """Return our order of three weights of [heads * channels], [groups * channels] and [groups * channels] rows."""
    heads, groups = model.num_attention_heads, model.num_query_groups
    share = heads // groups
    order = [
        block
        for group in range(groups)
        for block in (*range(group * share, (group + 1) * share), heads + group, heads + groups + group)
    ]
    return by_blocks(joined([query, key, value], 0), order, model.head_size)


def separate(weight: LazyTensor, model: ModelSection) -> tuple[LazyTensor, LazyTensor, LazyTensor]:
    """Return the weights of queries, keys and values of our order."""
    groups, channels = model.num_query_groups, model.head_size
    share = model.num_attention_heads // groups
    slots = (range(share), [share], [share + 1])
    order = [group * (share + 2) + slot for part in slots for group in range(groups) for slot in part]
    three = by_blocks(weight, order, channels)
    rows = groups * channels
    return (
        narrowed(three, 0, 0, share * rows),
        narrowed(three, 0, share * rows, rows),
        narrowed(three, 0, (share + 1) * rows, rows),
    )


def by_blocks(weight: LazyTensor, order: Sequence[int], size: int) -> LazyTensor:
    """Return blocks of rows in another order; of a weight that is read by rows no others are read.

    Args:
        weight: of len(order) * size rows.
        order: for each block of the result its number in the weight.
        size: rows of a block.
    """

    def rows(begin: int, end: int) -> Tensor:
        places: list[tuple[int, int]] = []
        for block in range(begin // size, -(-end // size)):
            moved = (order[block] - block) * size
            low, high = max(begin, block * size) + moved, min(end, (block + 1) * size) + moved
            if places and places[-1][1] == low:
                low = places.pop()[0]
            places.append((low, high))
        if weight.by_rows:
            return torch.cat([weight.rows(*place) for place in places])
        whole = weight.whole()
        return torch.cat([whole[low:high] for low, high in places])

    return replace(weight, rows=rows)


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
