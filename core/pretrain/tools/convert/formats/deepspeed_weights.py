"""Names and fp32 weights of Megatron-DeepSpeed: in ZeRO's optimizer shards, and in universal checkpoints.

Without a pipeline names are Megatron-LM's of before megatron-core: `language_model.encoder.layers.N...`
(TransformerLanguageModel in megatron/model/language_model.py). In a universal checkpoint of a pipeline a name begins
with the number of its module, and that of a tied embedding with `tied_modules.embed` (GPTModelPipe in
megatron/model/gpt_model.py); how many modules come before the first layer differs between forks.

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
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from pretrain.errors import CheckpointError, DamageError
from pretrain.tools.convert.lazy_tensor import LazyTensor, joined, narrowed, unflattened
from pretrain.tools.convert.rank_parts import lacking, mixed_files, not_known
from pretrain.tools.convert.stored import damaged, torch_file_tensors
from pretrain.tools.convert.weight_names import MODULES, name_in_layer, our_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from pretrain.tools.convert.weight_names import Shapes

_WRAPPED = re.compile(r"(module\.)+")
_NUMBERED = re.compile(r"(\d+)\.(.+)")
_TIED = "tied_modules.embed."
# their name in a module outside of the layers -> ours
_IN_PIPELINE = {
    "word_embeddings.weight": "embedding.word_embeddings.weight",
    "position_embeddings.weight": "embedding.position_embeddings.weight",
    "word_embeddings.norm.weight": "embedding_layernorm.weight",
    "word_embeddings.norm.bias": "embedding_layernorm.bias",
    "weight": "decoder.final_layernorm.weight",
    "bias": "decoder.final_layernorm.bias",
    "lm_head.weight": "output_layer.weight",
}
_OPTIMIZER = "optimizer_state_dict"
_PARTS, _PARTS_OF_3 = "single_partition_of_fp32_groups", "fp32_flat_groups"
# numbers after each parameter of a group; since DeepSpeed 0.19, where a parameter's place is to be aligned
_PADDINGS = "param_alignment_paddings"
UNIVERSAL = "zero"  # folder of a universal checkpoint's weights
FILE = "fp32.pt"
# keys of a file, by deepspeed/checkpoint/constants.py
PARAM, CAT_DIM, VOCABULARY, SUB_PARAMS = "param", "cat_dim", "vocab_tensor", "param_n_sub_params"
_REFUSED = {"is_expert_param": "a mixture of experts", "sub_param_shape": "parameters of several sub-parameters"}


def our_names(names: Collection[str], folder: Path) -> dict[str, str]:
    """Return their name -> ours, of all weights of a checkpoint."""
    modules = {name: found for name in names if (found := _NUMBERED.fullmatch(_bare(name)))}
    layers = [int(found[1]) for found in modules.values() if name_in_layer(found[2]) is not None]
    before = min(layers, default=0)
    ours = {name: _ours(_bare(name), before) for name in names}
    if unknown := sorted(name for name, our in ours.items() if our is None):
        raise not_known(folder, unknown)
    taken: dict[str, str] = {}
    for name, our in ours.items():
        if our is not None and (other := taken.setdefault(our, name)) != name:
            msg = f"{folder} has {other[:100]} and {name[:100]}, which are the same weight.\nRemove one of them."
            raise CheckpointError(msg)
    return {name: our for our, name in taken.items()}


def their_name(name: str) -> str:
    """Return Megatron-DeepSpeed's name of a weight of ours, without a pipeline."""
    if name.startswith("decoder.layers."):
        _, _, number, inside = name.split(".", 3)
        module, _, kind = inside.rpartition(".")
        return f"language_model.encoder.layers.{number}.{MODULES[module][0]}.{kind}"
    return f"language_model.{name.replace('decoder.', 'encoder.', 1)}"


def _bare(name: str) -> str:
    wrapped = _WRAPPED.match(name)
    return name[wrapped.end() :] if wrapped else name


def _ours(name: str, before: int) -> str | None:
    if name.startswith(_TIED):
        return _IN_PIPELINE.get(name.removeprefix(_TIED))
    if found := _NUMBERED.fullmatch(name):
        inside = name_in_layer(found[2])
        return f"decoder.layers.{int(found[1]) - before}.{inside}" if inside else _IN_PIPELINE.get(found[2])
    return our_name(name, 0)


def fp32_weights(files: Sequence[Path], state: Mapping[str, Any]) -> dict[str, LazyTensor]:
    """Return the weights by name of one tensor-parallel rank; frozen ones are not in the optimizer."""
    states = [_optimizer(file) for file in files]
    _require_all(files, states)
    groups = _listed_groups(state.get("param_shapes"))
    if not groups:
        raise damaged(files[0].parent, "has an optimizer of ZeRO, but its model lists no param_shapes")
    if _PARTS_OF_3 in states[0]:
        return _of_zero_3(files, states, listed(state.get("param_shapes")))
    return _of_zero_2(files, states, groups)


def frozen_weights(files: Sequence[Path], states: Sequence[Mapping[str, Any]]) -> dict[str, LazyTensor]:
    """Return the weights by name that ZeRO-3 divided and did not train, in their own dtype."""
    found = {}
    for name, shape in listed(states[0].get("frozen_param_shapes")).items():
        parts = [(state.get("frozen_param_fragments") or {}).get(name) for state in states]
        for file, part in zip(files, parts, strict=True):
            if not isinstance(part, LazyTensor) or part.shape != (-(-math.prod(shape) // len(files)),):
                raise damaged(file, f"lacks its part of {name}")
        found[name] = unflattened(joined([part for part in parts if part is not None], 0), 0, shape)
    return found


def rounded_to(weight: LazyTensor, copy: LazyTensor, what: str) -> LazyTensor:
    """Return fp32 numbers that are compared, while they are read, with their copy of fewer bits.

    ZeRO rounds its shards to the model's copy after every step. This finds exchanged shards, those of another iteration
    and a wrong order of parameters; DeepSpeed's zero_to_fp32.py has no such check.
    """
    differs = f"{what} differs from its fp32 weight in ZeRO's *_optim_states.pt by more than rounding.\n"
    differs += "Copy the files of one checkpoint together."
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
        raise damaged(file, f"lacks ZeRO's fp32 weights ({_PARTS} or {_PARTS_OF_3})")
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
        what = f"a mixture-of-experts checkpoint (its groups have {sorted(counts)} ranks), which is not supported"
        msg = f"{files[0]} is {what}.\nChoose a dense model."
        raise CheckpointError(msg)
    if counts and counts != {len(files)}:
        msg = f"{files[0].parent} has optimizer files of {len(files)} of {counts.pop()} data-parallel ranks.\n"
        msg += "Copy the others there, or remove all: then the model's fp16 or bf16 weights are read."
        raise CheckpointError(msg)
    kinds = {(_PARTS_OF_3 in state, len(state[_PARTS_OF_3 if _PARTS_OF_3 in state else _PARTS])) for state in states}
    if len(kinds) > 1:
        raise mixed_files(files[0].parent, "has optimizer files of different trainings")


def _of_zero_2(
    files: Sequence[Path], states: Sequence[Mapping[str, Any]], groups: list[Shapes]
) -> dict[str, LazyTensor]:
    weights: dict[str, LazyTensor] = {}
    if len(groups) != len(states[0][_PARTS]):
        found = f"{len(states[0][_PARTS])} groups of parameters, but the model's file lists {len(groups)}"
        raise damaged(files[0], f"has {found}")
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
    """Require as many numbers as the parameters have, with or without padding to a multiple of `align` at the end."""
    if -(-wanted // align) != -(-found // align) or found < wanted:
        msg = (
            f"{files[0].parent}: the optimizer's shards have {found:,} fp32 numbers for a group of {wanted:,} "
            "parameters.\nCopy the files of all ranks again; fp32 weights that were offloaded to files are not read."
        )
        raise DamageError(msg)


@dataclass(frozen=True, slots=True)
class UniversalWeight:
    """A whole weight."""

    tensor: LazyTensor
    in_order: bool  # whether the parts of a fused weight follow one another; if not, the tensor-parallel ranks' rows do


def universal_weights(folder: Path, states: Sequence[Mapping[str, Any]]) -> dict[str, UniversalWeight]:
    """Return the weights by name."""
    shapes: Shapes = {}
    for state in states:
        shapes |= listed(state.get("param_shapes"))
    copies = {str(name) for state in states for name in state.get("shared_params") or ()}
    files = {file.parent.name: file for file in sorted((folder / UNIVERSAL).glob(f"*/{FILE}"))}
    if missing := sorted(set(shapes) - set(files) - copies):
        count = f"{len(missing)} weight{'s' * (len(missing) > 1)}"
        raise lacking(folder / UNIVERSAL, f"the folders of {count}: {', '.join(missing[:3])}")
    if not files:
        raise lacking(folder / UNIVERSAL, f"the weights' folders with {FILE}")
    return {name: _weight(file, shapes.get(name)) for name, file in files.items() if name not in copies}


def _weight(file: Path, shape: tuple[int, ...] | None) -> UniversalWeight:
    content = torch_file_tensors(file)
    keys: Mapping[str, Any] = content if isinstance(content, dict) else {PARAM: content}
    tensor = keys.get(PARAM)
    if not isinstance(tensor, LazyTensor):
        raise damaged(file, f"has neither a tensor under `{PARAM}` nor one alone")
    for key, what in _REFUSED.items():
        if keys.get(key):
            msg = f"{file} has {what} ({key}), which is not supported.\nChoose another checkpoint."
            raise CheckpointError(msg)
    if len(tensor.shape) == 1 and shape is not None and math.prod(shape) == tensor.shape[0]:
        tensor = unflattened(tensor, 0, shape)
    return UniversalWeight(tensor, in_order=keys.get(SUB_PARAMS) in (2, 3))


def listed(groups: Any) -> Shapes:
    """Return the shapes by name of a list of groups of parameters, or of one."""
    return {name: shape for group in _listed_groups(groups) for name, shape in group.items()}


def _listed_groups(groups: Any) -> list[Shapes]:
    """Return the shapes by name of each group of parameters, in their order, of `param_shapes` of any version."""
    found = [group for group in (groups if isinstance(groups, list) else [groups]) if isinstance(group, dict)]
    return [
        {str(name): tuple(shape) for name, shape in group.items() if isinstance(shape, torch.Size)} for group in found
    ]
