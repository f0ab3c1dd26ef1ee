"""fp32 weights of DeepSpeed: in ZeRO's optimizer shards, and in universal checkpoints.

ZeRO 1 and 2 flatten the parameters of a group one after the other and divide the flat tensor among the data-parallel
ranks (`_zero2_merge_trainable_params` in deepspeed/utils/zero_to_fp32.py); ZeRO-3 divides every parameter, padded to a
multiple of the ranks (`_zero3_merge_trainable_params`). `param_shapes` of the model's file has names and shapes in
their order.

A universal checkpoint has `zero/NAME/fp32.pt`, whole (deepspeed/checkpoint/ds_to_universal.py): {param, cat_dim,
vocab_tensor, param_n_sub_params, ...} (`merge_tp_slices`), or the tensor alone and flat (`merge_zero3_slices`), whose
shape is in `param_shapes`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from pretrain.errors import CheckpointError, DamageError
from pretrain.tools.convert.lazy_tensor import LazyTensor, joined, narrowed, unflattened
from pretrain.tools.convert.stored import torch_file_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from pretrain.tools.convert.weight_names import Shapes


_OPTIMIZER = "optimizer_state_dict"
_PARTS, _PARTS_OF_3 = "single_partition_of_fp32_groups", "fp32_flat_groups"
_PADDINGS = "param_alignment_paddings"
"""Numbers after each parameter of a group; since DeepSpeed 0.19, where a parameter's place is to be aligned."""


def fp32_weights(files: Sequence[Path], state: Mapping[str, Any]) -> dict[str, LazyTensor]:
    """Return the weights by name of one tensor-parallel rank; frozen ones are not in the optimizer.

    Args:
        files: of the optimizer, of all data-parallel ranks in their order.
        state: what the model's file of the first of them holds.

    Raises:
        CheckpointError: a rank is missing, or an expert-parallel group divided the weights.
        DamageError: a file holds no optimizer of ZeRO, or not as many numbers as the parameters have.
    """
    states = [_optimizer(file) for file in files]
    _require_all(files, states)
    groups = listed_groups(state.get("param_shapes"))
    if not groups:
        msg = f"{files[0].parent} has an optimizer of ZeRO, and its model lists no param_shapes.\nCopy all files again."
        raise DamageError(msg)
    if _PARTS_OF_3 in states[0]:
        return _of_zero_3(files, states, listed(state.get("param_shapes")))
    return _of_zero_2(files, states, groups)


def frozen_weights(files: Sequence[Path], states: Sequence[Mapping[str, Any]]) -> dict[str, LazyTensor]:
    """Return the weights by name that ZeRO-3 divided and did not train, in their own dtype.

    Args:
        files: of the model, of all data-parallel ranks in their order.
        states: what they hold.

    Raises:
        DamageError: a part of a rank is missing.
    """
    found = {}
    for name, shape in listed(states[0].get("frozen_param_shapes")).items():
        parts = [(state.get("frozen_param_fragments") or {}).get(name) for state in states]
        for file, part in zip(files, parts, strict=True):
            if not isinstance(part, LazyTensor) or part.shape != (-(-math.prod(shape) // len(files)),):
                msg = f"{file} lacks its part of {name}.\nCopy it again."
                raise DamageError(msg)
        found[name] = unflattened(joined([part for part in parts if part is not None], 0), 0, shape)
    return found


def rounded_to(weight: LazyTensor, copy: LazyTensor, what: str) -> LazyTensor:
    """Return fp32 numbers that are compared, while they are read, with their copy of fewer bits.

    ZeRO rounds its shards to the model's copy after every step. It finds shards that were exchanged, those of another
    iteration, and a wrong order of parameters; DeepSpeed's zero_to_fp32.py has no such check.

    Args:
        weight: of the optimizer's shards.
        copy: of the model's file.
        what: name and file of the copy, for the error.

    Raises:
        DamageError: while it is read, if they differ by more than one rounding; before, if their shapes do.
    """
    differs = (
        f"{what} is not its fp32 weight in ZeRO's *_optim_states.pt, rounded.\nCopy the files of one save together."
    )
    if copy.shape != weight.shape:
        raise DamageError(differs)
    step = torch.finfo(copy.dtype)

    def rows(begin: int, end: int) -> Tensor:
        ours, theirs = weight.rows(begin, end), copy.rows(begin, end)
        bound = step.eps * torch.maximum(ours.abs(), theirs.abs()).float() + step.smallest_normal * step.eps
        same = (ours.to(copy.dtype) == theirs) | ((ours - theirs).abs() <= bound)
        if not bool((same | ~(ours.isfinite() | theirs.isfinite())).all()):
            raise DamageError(differs)
        return ours

    return replace(weight, rows=rows)


def _optimizer(file: Path) -> dict[str, Any]:
    state = torch_file_tensors(file)
    optimizer = state.get(_OPTIMIZER) if isinstance(state, dict) else None
    if not isinstance(optimizer, dict) or not any(_is_flat(optimizer.get(key)) for key in (_PARTS, _PARTS_OF_3)):
        msg = f"{file} lacks ZeRO's fp32 weights ({_PARTS} or {_PARTS_OF_3}).\nCopy it again."
        raise DamageError(msg)
    if optimizer.get("ds_zero_partition_groups"):
        msg = f"{file} is a mixture-of-experts checkpoint, which is not supported.\nChoose a dense model."
        raise CheckpointError(msg)
    return optimizer


def _is_flat(groups: Any) -> bool:
    is_list = isinstance(groups, list | tuple) and len(groups) > 0
    return is_list and all(isinstance(group, LazyTensor) and len(group.shape) == 1 for group in groups)


def _require_all(files: Sequence[Path], states: Sequence[Mapping[str, Any]]) -> None:
    count = states[0].get("partition_count")
    counts = {number for number in (count if isinstance(count, list | tuple) else [count]) if isinstance(number, int)}
    if len(counts) > 1:
        msg = (
            f"{files[0]} is a mixture-of-experts checkpoint, which is not supported: its groups have "
            f"{sorted(counts)} ranks.\nChoose a dense model."
        )
        raise CheckpointError(msg)
    if counts and counts != {len(files)}:
        msg = (
            f"{files[0].parent} has optimizer files of {len(files)} of {counts.pop()} data-parallel ranks.\n"
            "Copy the others there; without any the model's own fp16 or bf16 weights are read."
        )
        raise CheckpointError(msg)
    kinds = {(_PARTS_OF_3 in state, len(state[_PARTS_OF_3 if _PARTS_OF_3 in state else _PARTS])) for state in states}
    if len(kinds) > 1:
        msg = f"{files[0].parent} has optimizer files of different trainings.\nCopy those of one."
        raise CheckpointError(msg)


def _of_zero_2(
    files: Sequence[Path], states: Sequence[Mapping[str, Any]], groups: list[Shapes]
) -> dict[str, LazyTensor]:
    weights: dict[str, LazyTensor] = {}
    if len(groups) != len(states[0][_PARTS]):
        msg = f"{files[0]} has {len(states[0][_PARTS])} groups of parameters, and the model's file lists {len(groups)}."
        raise DamageError(msg)
    paddings = states[0].get(_PADDINGS) or [[0] * len(shapes) for shapes in groups]
    for number, shapes in enumerate(groups):
        flat = joined([state[_PARTS][number] for state in states], 0)
        place = 0
        for (name, shape), padding in zip(shapes.items(), paddings[number], strict=True):
            weights[name] = unflattened(flat, place, shape)
            place += math.prod(shape) + padding
        _require_size(files, place, flat.shape[0], 2 * len(files))
    return weights


def _of_zero_3(files: Sequence[Path], states: Sequence[Mapping[str, Any]], shapes: Shapes) -> dict[str, LazyTensor]:
    """Take every rank's part of each parameter; a rank's groups follow one another."""
    ranks = [joined(state[_PARTS_OF_3], 0) for state in states]
    weights: dict[str, LazyTensor] = {}
    place = 0
    for name, shape in shapes.items():
        size = -(-math.prod(shape) // len(ranks))
        weights[name] = unflattened(joined([narrowed(rank, 0, place, size) for rank in ranks], 0), 0, shape)
        place += size
    for rank in ranks:
        _require_size(files, place, rank.shape[0], 1)
    return weights


def _require_size(files: Sequence[Path], wanted: int, found: int, align: int) -> None:
    """Require as many numbers as the parameters have, but for padding to a multiple of `align` at the end.

    With ZeRO 1 and 2 it depends on the version whether there is padding (`_zero2_merge_trainable_params`).
    """
    if -(-wanted // align) != -(-found // align) or found < wanted:
        msg = (
            f"{files[0].parent}: the optimizer's shards have {found:,} fp32 numbers of a group, and its parameters "
            f"{wanted:,}.\nCopy the files of all ranks again; fp32 weights that were offloaded to files are not read."
        )
        raise DamageError(msg)


FILE = "fp32.pt"
PARAM, CAT_DIM, VOCABULARY, SUB_PARAMS = "param", "cat_dim", "vocab_tensor", "param_n_sub_params"
"""Keys of a file, by deepspeed/checkpoint/constants.py."""

_REFUSED = {"is_expert_param": "a mixture of experts", "sub_param_shape": "parameters of several sub-parameters"}


@dataclass(frozen=True, slots=True)
class UniversalWeight:
    """A weight.

    Attributes:
        tensor: whole; of the vocabulary without padding where the converter knew its size.
        in_order: whether the parts of a fused weight (gate and up projection; query, key and value) follow one another,
            as a converter has them that knows of them. Otherwise the tensor-parallel ranks' rows do.
    """

    tensor: LazyTensor
    in_order: bool


def universal_weights(folder: Path, states: Sequence[Mapping[str, Any]]) -> dict[str, UniversalWeight]:
    """Return the weights by name.

    Args:
        folder: the checkpoint.
        states: what the files of the model hold.

    Raises:
        CheckpointError: a weight is missing, or of a kind that is not read.
        DamageError: a file is cut off, or holds no tensor.
    """
    shapes: Shapes = {}
    for state in states:
        shapes |= listed(state.get("param_shapes"))
    copies = {str(name) for state in states for name in state.get("shared_params") or ()}
    files = {file.parent.name: file for file in sorted((folder / UNIVERSAL).glob(f"*/{FILE}"))}
    if missing := sorted(set(shapes) - set(files) - copies):
        count = f"{len(missing)} weight{'s' * (len(missing) > 1)}"
        msg = f"{folder / UNIVERSAL} lacks {count}: {', '.join(missing[:3])}.\nCopy their folders there."
        raise CheckpointError(msg)
    if not files:
        msg = f"{folder / UNIVERSAL} has no folder with a file {FILE}.\nCopy the weights' folders there."
        raise CheckpointError(msg)
    return {name: _weight(file, shapes.get(name)) for name, file in files.items() if name not in copies}


def _weight(file: Path, shape: tuple[int, ...] | None) -> UniversalWeight:
    content = torch_file_tensors(file)
    keys: Mapping[str, Any] = content if isinstance(content, dict) else {PARAM: content}
    tensor = keys.get(PARAM)
    if not isinstance(tensor, LazyTensor):
        msg = f"{file} has neither a tensor under `{PARAM}` nor one alone.\nCopy it again."
        raise DamageError(msg)
    for key, what in _REFUSED.items():
        if keys.get(key):
            msg = f"{file} has {what} ({key}), which is not supported.\nChoose another checkpoint."
            raise CheckpointError(msg)
    if len(tensor.shape) == 1 and shape is not None and math.prod(shape) == tensor.shape[0]:
        tensor = unflattened(tensor, 0, shape)
    return UniversalWeight(tensor, in_order=keys.get(SUB_PARAMS) in (2, 3))


UNIVERSAL = "zero"
"""Folder of a universal checkpoint's weights."""


def listed(groups: Any) -> Shapes:
    """Return the shapes by name of a list of groups of parameters, or of one."""
    return {name: shape for group in listed_groups(groups) for name, shape in group.items()}


def listed_groups(groups: Any) -> list[Shapes]:
    """Return the shapes by name of each group of parameters, in their order, of `param_shapes` of any version."""
    found = [group for group in (groups if isinstance(groups, list) else [groups]) if isinstance(group, dict)]
    return [
        {str(name): tuple(shape) for name, shape in group.items() if isinstance(shape, torch.Size)} for group in found
    ]
