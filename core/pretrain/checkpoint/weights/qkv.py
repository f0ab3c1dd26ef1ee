"""Orders of the rows of a fused query-key-value weight, [rows] or [rows, hidden].

Ours is megatron-core's: for each query group its queries, its key, its value, each of `kv_channels` rows. With as many
groups as heads this is [head][q, k, v][channel], the order of GPT-NeoX and of Megatron-LM since checkpoint version 2.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pretrain.checkpoint.weights.lazy_tensor import joined, narrowed, rearranged

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.checkpoint.weights.lazy_tensor import LazyTensor
    from pretrain.recipe.sections.model import ModelSection


def from_parts_first(weight: LazyTensor, heads: int) -> LazyTensor:
    """Return our order of [q, k, v][head][channel]: Megatron-LM's checkpoint version 0, and GPT-2 of Hugging Face."""
    return rearranged(weight, lambda tensor: _exchanged(tensor, (3, heads)))


def to_parts_first(weight: LazyTensor, heads: int) -> LazyTensor:
    """Return [q, k, v][head][channel] of our order."""
    return rearranged(weight, lambda tensor: _exchanged(tensor, (heads, 3)))


def from_channels_first(weight: LazyTensor, heads: int) -> LazyTensor:
    """Return our order of [head][channel][q, k, v]: Megatron-LM's checkpoint version 1.0."""

    def function(tensor: Tensor) -> Tensor:
        view = tensor.view(heads, -1, 3, *tensor.shape[1:])
        return view.transpose(1, 2).reshape(tensor.shape)

    return rearranged(weight, function)


def fused(query: LazyTensor, key: LazyTensor, value: LazyTensor, model: ModelSection) -> LazyTensor:
    """Return our order of three weights of [heads * channels], [groups * channels] and [groups * channels] rows."""
    groups, channels = model.num_query_groups, model.head_size
    rows = query.shape[0] + 2 * key.shape[0]
    three = joined([query, key, value], 0)

    def function(tensor: Tensor) -> Tensor:
        queries, keys, values = torch.split(tensor, [query.shape[0], key.shape[0], value.shape[0]])
        rest = tensor.shape[1:]
        parts = [part.view(groups, -1, channels, *rest) for part in (queries, keys, values)]
        return torch.cat(parts, 1).view(rows, *rest)

    return rearranged(three, function, (rows, *query.shape[1:]))


def separate(weight: LazyTensor, model: ModelSection) -> tuple[LazyTensor, LazyTensor, LazyTensor]:
    """Return the weights of queries, keys and values of our order."""
    groups, channels = model.num_query_groups, model.head_size
    queries = model.num_attention_heads // groups

    def function(tensor: Tensor) -> Tensor:
        rest = tensor.shape[1:]
        parts = torch.split(tensor.view(groups, queries + 2, channels, *rest), [queries, 1, 1], 1)
        return torch.cat([part.reshape(-1, *rest) for part in parts])

    three = rearranged(weight, function)
    rows = groups * channels
    return (
        narrowed(three, 0, 0, queries * rows),
        narrowed(three, 0, queries * rows, rows),
        narrowed(three, 0, (queries + 1) * rows, rows),
    )


def _exchanged(tensor: Tensor, sizes: tuple[int, int]) -> Tensor:
    view = tensor.view(*sizes, -1, *tensor.shape[1:])
    return view.transpose(0, 1).reshape(tensor.shape)
