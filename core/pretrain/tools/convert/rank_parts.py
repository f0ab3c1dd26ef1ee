"""Parts of weights on tensor-parallel ranks, and orders of the rows of a fused query-key-value weight.

ColumnParallelLinear and VocabParallelEmbedding divide the rows, RowParallelLinear the columns and not the bias
(megatron/core/tensor_parallel/layers.py). A rank of swiglu's linear_fc1 holds [its gate rows; its up rows].

Our order of query-key-value, [rows] or [rows, hidden], is megatron-core's: for each query group its queries, its key,
its value, each of `kv_channels` rows. With as many groups as heads this is [head][q, k, v][channel], the order of
GPT-NeoX and of Megatron-LM since checkpoint version 2.0. With grouped queries a rank of GPT-NeoX holds [its queries;
its keys; its values] since 14 November 2024. Before, it held for each of its heads the head's query, and a slice of its
keys and of its values as long as the head's share of them (gqa_project in megatron/model/transformer.py before and
after 96c242eb). The files do not tell the date: the names of the MLP changed on 7 September 2024, so those of a model
from between are taken for later ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from pretrain.errors import CheckpointError
from pretrain.report.plain_text import some_of
from pretrain.tools.convert import lazy_tensor
from pretrain.tools.convert.lazy_tensor import LazyTensor, described, joined, narrowed, part_of
from pretrain.tools.convert.weight_names import bounded, divided_dimension, flat_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from pretrain.recipe.sections.model import ModelSection

_SAME = ("iteration", "global_steps", "checkpoint_version")  # what all files of one checkpoint tell alike


def merged(name: str, parts: Sequence[LazyTensor], model: ModelSection) -> LazyTensor:
    """Return a whole weight; what every rank has whole is averaged where the ranks differ."""
    dimension = divided_dimension(name)
    if dimension is None:
        return lazy_tensor.averaged(parts)
    if is_gated(name, model):
        return joined([part_of(part, 0, half, 2) for half in range(2) for part in parts], 0)
    return joined(parts, dimension)


def part_of_rank(name: str, whole: LazyTensor, rank: int, ranks: int, model: ModelSection) -> LazyTensor:
    """Return one rank's part of a weight."""
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


def weights_in(path: Path, state: Any) -> dict[str, LazyTensor]:
    """Return the weights of a state dict by their names."""
    tensors = flat_tensors(state)
    weights = {
        name: tensor
        for name, tensor in tensors.items()
        if isinstance(tensor, LazyTensor) and tensor.dtype.is_floating_point
    }
    if odd := next((name for name in tensors if name not in weights), None):
        msg = f"{path} holds {odd[:100]}, which is not a floating-point tensor.\nSave the model without it."
        raise CheckpointError(msg)
    return weights


def by_name(ranks: Sequence[tuple[Path, dict[str, LazyTensor]]]) -> dict[str, list[LazyTensor]]:
    """Return each weight's parts in the order of the ranks."""
    first, weights = ranks[0]
    for path, others in ranks[1:]:
        if missing := sorted(weights.keys() ^ others.keys()):
            lacking = path if missing[0] in weights else first
            raise mixed_files(lacking, f"lacks {missing[0]}, which another tensor-parallel rank's file has")
        for name, part in others.items():
            ours, theirs = described(weights[name]), described(part)
            if ours != theirs:
                raise mixed_files(path, f"has {name} as {theirs}, and {first} as {ours}")
    return {name: [others[name] for _, others in ranks] for name in weights}


def require_one_save(states: Sequence[tuple[Path, Mapping[str, Any]]]) -> None:
    """Require that ranks and stages were saved at one iteration and in one version."""
    first, expected = states[0]
    for path, state in states[1:]:
        for key in _SAME:
            found, wanted = bounded(state.get(key)), bounded(expected.get(key))
            if found != wanted:
                raise mixed_files(path, f"has {key} {found}, and {first} {wanted}")


def not_known(path: Path, names: Sequence[str]) -> CheckpointError:
    """Return the error for weights whose place in our model is not known."""
    shown = some_of([name[:100] for name in names])
    return CheckpointError(
        f"{path} holds {len(names)} weights that are not of a GPT: {shown}.\n"
        "Only models that a recipe can describe are converted."
    )


def not_ours(path: Path, what: str) -> CheckpointError:
    """Return the error for a checkpoint of a model that recipes cannot describe."""
    return CheckpointError(
        f"{path} describes a model with {what}.\nRecipes have no such setting: it cannot be converted."
    )


def mixed_files(path: Path, what: str) -> CheckpointError:
    """Return the error for files that are not of one save."""
    return CheckpointError(f"{path} {what}.\nCopy the files of one checkpoint together.")


def lacking(folder: Path, what: str) -> CheckpointError:
    """Return the error for files that a folder should have."""
    return CheckpointError(f"{folder} lacks {what}.\nCopy what is missing there.")


def from_parts_first(weight: LazyTensor, heads: int) -> LazyTensor:
    """Return our order of [q, k, v][head][channel]: Megatron-LM's checkpoint version 0, and GPT-2 of Hugging Face."""
    order = [part * heads + head for head in range(heads) for part in range(3)]
    return _by_blocks(weight, order, weight.shape[0] // len(order))


def to_parts_first(weight: LazyTensor, heads: int) -> LazyTensor:
    """Return [q, k, v][head][channel] of our order."""
    order = [head * 3 + part for part in range(3) for head in range(heads)]
    return _by_blocks(weight, order, weight.shape[0] // len(order))


def from_channels_first(weight: LazyTensor, heads: int) -> LazyTensor:
    """Return our order of [head][channel][q, k, v]: Megatron-LM's checkpoint version 1.0."""

    def function(tensor: Tensor) -> Tensor:
        view = tensor.view(heads, -1, 3, *tensor.shape[1:])
        return view.transpose(1, 2).reshape(tensor.shape)

    return lazy_tensor.rearranged(weight, function)


def fused(query: LazyTensor, key: LazyTensor, value: LazyTensor, model: ModelSection) -> LazyTensor:
    """Return our order of three weights of [heads * channels], [groups * channels] and [groups * channels] rows."""
    heads, groups = model.num_attention_heads, model.num_query_groups
    share = heads // groups
    order = [
        block
        for group in range(groups)
        for block in (*range(group * share, (group + 1) * share), heads + group, heads + groups + group)
    ]
    return _by_blocks(joined([query, key, value], 0), order, model.head_size)


def separate(weight: LazyTensor, model: ModelSection) -> tuple[LazyTensor, LazyTensor, LazyTensor]:
    """Return the weights of queries, keys and values of our order."""
    groups, channels = model.num_query_groups, model.head_size
    share = model.num_attention_heads // groups
    slots = (range(share), [share], [share + 1])
    order = [group * (share + 2) + slot for part in slots for group in range(groups) for slot in part]
    three = _by_blocks(weight, order, channels)
    rows = groups * channels
    return (
        narrowed(three, 0, 0, share * rows),
        narrowed(three, 0, share * rows, rows),
        narrowed(three, 0, (share + 1) * rows, rows),
    )


def _by_blocks(weight: LazyTensor, order: Sequence[int], size: int) -> LazyTensor:
    """Reorder blocks of rows; where the weight can be read by rows, only the wanted ones are read."""

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
    """Return the whole weight in our order."""
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
    return _by_blocks(part, order, part.shape[0] // len(order))
