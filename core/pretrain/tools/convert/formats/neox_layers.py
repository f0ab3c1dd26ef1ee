"""Files and names of DeepSpeed's pipelines, by GPT-NeoX and Megatron-DeepSpeed.

`layer_NN-model_TT-model_states.pt` (ckpt_layer_path in deepspeed/runtime/pipe/module.py). NN counts the modules of the
pipeline; functions without weights have numbers without files. Without pipeline (pipe_parallel_size 0) the weights are
in mp_rank_XX with names `sequential.NN.`.

Names in a module: GPT-NeoX (megatron/model/transformer.py) has `attention.query_key_value`, and in the MLP
`dense_h_to_4h` until September 2024, `linear1` since then, `w1`, `w2`, `w3` in the Llama MLP of 2023. The other
(megatron/model/gpt_model.py, GPTModelPipe) has `self_attention.query_key_value`, a final norm without name, `lm_head`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrain.errors import CheckpointError
from pretrain.report.plain_text import some_of
from pretrain.tools.convert.lazy_tensor import equal_to, joined
from pretrain.tools.convert.rank_parts import by_name, lacking, mixed_files, not_known, weights_in
from pretrain.tools.convert.stored import damaged, torch_file_tensors
from pretrain.tools.convert.weight_names import name_in_layer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pretrain.tools.convert.lazy_tensor import LazyTensor

_FILE = re.compile(r"layer_(\d+)-model_(\d+)-model_states\.pt")
STATES = "mp_rank_00_model_states.pt"
# a weight that every transformer layer has, and nothing else; `scale` is GPT-NeoX's RMSNorm
_NORM = re.compile(r"input_layernorm\.(weight|scale)$")
_FINAL_NORM = re.compile(r"(norm\.)?(weight|scale)$")  # the norm after the layers; Megatron-DeepSpeed's has no name
_SEQUENTIAL = re.compile(r"sequential\.(\d+)\.(.+)")
_RANK = re.compile(r"mp_rank_(\d+)_model_states\.pt")
_FREQUENCIES = "rotary_emb.inv_freq"
OF_MEGATRON = "self_attention."  # begin of a name that GPT-NeoX's layers do not have
_OUTSIDE = {
    "word_embeddings": "embedding.word_embeddings",
    "position_embeddings": "embedding.position_embeddings",
    "word_embeddings.norm": "embedding_layernorm",
    "norm": "decoder.final_layernorm",
    "final_linear": "output_layer",
    "lm_head": "output_layer",
}
_MLP = {"mlp.linear1": "mlp.linear_fc1", "mlp.linear2": "mlp.linear_fc2", "mlp.w2": "mlp.linear_fc2"}
_GATE, _UP = "mlp.w1.weight", "mlp.w3.weight"
_EMBEDDING, _OUR_EMBEDDING = "word_embeddings.weight", "embedding.word_embeddings.weight"
_NAMELESS = {"weight", "bias"}
# ends of our names of the biases of row-parallel layers, which every rank has
ROW_BIASES = (".self_attention.linear_proj.bias", ".mlp.linear_fc2.bias")


def layer_files(folder: Path) -> dict[int, list[Path]]:
    """Return each layer's files, one for each tensor-parallel rank, by the layer's number; none in another format."""
    found = [match for entry in folder.glob("layer_*-model_*") if (match := _FILE.fullmatch(entry.name))]
    if not found:
        return {}
    tensor = max(int(match[2]) for match in found) + 1
    if tensor > len(found):
        msg = f"{folder} has files up to rank {tensor - 1}, but only {len(found)} in all.\nCopy the others there."
        raise CheckpointError(msg)
    there = {(int(match[1]), int(match[2])): match[0] for match in found}
    numbers = sorted({number for number, _ in there})
    missing = [(number, rank) for number in numbers for rank in range(tensor) if (number, rank) not in there]
    if missing:
        names = [f"layer_{number:02d}-model_{rank:02d}-model_states.pt" for number, rank in missing]
        raise lacking(folder, f"files of the {tensor} tensor-parallel ranks: {some_of(names)}")
    return {number: [folder / there[number, rank] for rank in range(tensor)] for number in numbers}


def state_of(path: Path) -> dict[str, Any]:
    """Return what a file holds."""
    state = torch_file_tensors(path)
    if not isinstance(state, dict):
        raise damaged(path, "does not map names to weights")
    return state


def transformer_layers(folder: Path, layers: Mapping[int, Iterable[Any]]) -> list[int]:
    """Return the numbers of the transformer layers."""
    numbers = [number for number, names in layers.items() if any(map(_NORM.search, map(str, names)))]
    if numbers and (missing := sorted(set(range(min(numbers), max(numbers))) - set(numbers))):
        raise lacking(folder, f"the files of layer {missing[0]} (layer_{missing[0]:02d}-model_*)")
    if numbers:
        _require_ends(folder, numbers, {number: {str(name) for name in names} for number, names in layers.items()})
    return numbers


def rotary_percent(size: int, head: int, told: object = None) -> float:
    """Return the fraction, the told one if it fits, of which all programs make `size` by int(head * fraction)."""
    if isinstance(told, int | float) and 0 < told <= 1 and int(head * told) == size:
        return told
    percent = size / head
    while int(head * percent) < size:  # 30 / 88 of 88 are 29.999999999999996
        percent = math.nextafter(percent, math.inf)
    return percent


def _require_ends(folder: Path, numbers: list[int], names: Mapping[int, set[str]]) -> None:
    """Require the first and the last layer, by the distances to the modules around them.

    GPT-NeoX has one function without weights before and one after the layers, and the embedding is module 0
    (GPT2ModelPipe.init_specs in megatron/model/gpt2_model.py). Megatron-DeepSpeed's embedding is module 1, and it has
    these functions, or in Microsoft's since 2023 neither (GPTModelPipe in megatron/model/gpt_model.py).
    """
    first, last = min(numbers), max(numbers)
    inside = {name for number in numbers for name in names[number]}
    if any("moe" in name for name in inside):
        return  # Microsoft's then has one more module, after the layers
    is_megatron = any(name.startswith(OF_MEGATRON) for name in inside)
    before = first - 1 if is_megatron else first
    norms = [number for number in names if number > last and any(map(_FINAL_NORM.match, names[number]))]
    after = min(norms) - last if norms else before
    if before != after or before not in ((1, 2) if is_megatron else (2,)):
        lost = first - 1 if before > after else last + 1
        msg = (
            f"{folder} has layers {first} to {last}, {before} after the embedding and {after} before the final norm.\n"
            f"Copy the files of layer {lost} there (layer_{lost:02d}-model_*)."
        )
        raise CheckpointError(msg)


def iteration_of(states: Mapping[str, Any], folder: Path) -> int | None:
    """Return the training's iteration: what the states say, or the folder's name."""
    named = re.fullmatch(r"global_step(\d+)", folder.name)
    number = states.get("iteration", states.get("global_steps", named and int(named[1])))
    return number if isinstance(number, int) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Layers:
    """Weights as they are stored."""

    path: Path
    parts: dict[int, dict[str, list[LazyTensor]]]  # number of the module -> name inside -> part on each tensor rank
    states: dict[str, Any]  # what mp_rank_00_model_states.pt holds; nothing where it is not there
    tensor: int  # number of tensor-parallel ranks
    rotary_size: int | None  # dimensions of a head that are rotated, where frequencies are stored


def stored_layers(folder: Path) -> Layers | None:
    """Return the numbered modules of a checkpoint, or None if it has none."""
    states = state_of(folder / STATES) if (folder / STATES).is_file() else {}
    if files := layer_files(folder):
        modules = {number: [(path, state_of(path)) for path in paths] for number, paths in files.items()}
    else:
        modules = _sequential(folder, states)
    if not modules:
        return None
    _require_one_save(folder)
    rotary = next((size for ranks in modules.values() if (size := rotary_size(ranks[0][1]))), None)
    parts = {
        number: by_name([(path, weights_in(path, state)) for path, state in ranks]) for number, ranks in modules.items()
    }
    return Layers(path=folder, parts=parts, states=states, tensor=len(next(iter(modules.values()))), rotary_size=rotary)


def _require_one_save(folder: Path) -> None:
    """Require one iteration in the files of all ranks; those of layers do not tell it."""
    found: dict[int | None, Path] = {}
    for path in sorted(folder.iterdir()):
        if _RANK.fullmatch(path.name):
            found.setdefault(iteration_of(state_of(path), folder), path)
    if len(found) > 1:
        (first, path), (second, other), *_ = found.items()
        raise mixed_files(path, f"is of iteration {first}, and {other.name} of {second}")


def _sequential(folder: Path, states: dict[str, Any]) -> dict[int, list[tuple[Path, dict[str, Any]]]]:
    """Return the modules of a model that was trained without pipeline."""
    module = states.get("module")
    if not isinstance(module, dict) or not any(_SEQUENTIAL.fullmatch(str(name)) for name in module):
        return {}
    ranks = sorted(int(found[1]) for entry in folder.iterdir() if (found := _RANK.fullmatch(entry.name)))
    count = max(ranks[-1] + 1, states["mp_world_size"] if type(states.get("mp_world_size")) is int else 1)
    missing = next((rank for rank in range(count) if rank not in ranks), None)
    if missing is not None:
        raise lacking(folder, f"mp_rank_{missing:02d}_model_states.pt of {count} ranks")
    modules: dict[int, dict[Path, dict[str, Any]]] = {}
    for rank in ranks:
        path = folder / f"mp_rank_{rank:02d}_model_states.pt"
        module = state_of(path).get("module")
        for name, value in module.items() if isinstance(module, dict) else ():
            found = _SEQUENTIAL.fullmatch(str(name))
            number, inside = (int(found[1]), found[2]) if found else (0, str(name))  # an unknown name is refused
            modules.setdefault(number, {}).setdefault(path, {})[inside] = value
    for number, files in modules.items():
        if len(files) != len(ranks):
            raise mixed_files(folder, f"has sequential.{number} in only {len(files)} of its {len(ranks)} ranks")
    return {number: list(states.items()) for number, states in modules.items()}


def rotary_size(state: Mapping[str, Any]) -> int | None:
    """Return the dimensions of a head that are rotated, where a layer holds frequencies."""
    frequencies = next((value for name, value in state.items() if str(name).endswith(_FREQUENCIES)), None)
    shape: tuple[int, ...] = getattr(frequencies, "shape", ())
    return 2 * shape[0] if len(shape) == 1 else None


def our_parts(layers: Layers, *, is_untied: bool) -> dict[str, list[LazyTensor]]:
    """Return each weight's parts by our names; gate and up projections of the Llama MLP become one.

    A tied output layer is the embedding's whole module once more. Its embedding must equal the first, or is kept if
    `is_untied`; its positions, which no gradient reaches there, need not be equal.
    """
    numbers = sorted(transformer_layers(layers.path, layers.parts))
    first = next((number for number, weights in sorted(layers.parts.items()) if _EMBEDDING in weights), None)
    parts: dict[str, list[LazyTensor]] = {}
    for number, weights in sorted(layers.parts.items()):
        if number in numbers:
            prefix = f"decoder.layers.{numbers.index(number)}."
            named = {name: _in_layer(name) for name in weights}
        elif _EMBEDDING in weights and number != first:
            places = (f"{_EMBEDDING} of layer {first}", f"{_EMBEDDING} of layer {number}")
            both = zip(parts[_OUR_EMBEDDING], weights[_EMBEDDING], strict=True)
            if is_untied:
                parts["output_layer.weight"] = weights[_EMBEDDING]
            else:
                parts[_OUR_EMBEDDING] = [equal_to(one, other, layers.path, places) for one, other in both]
            continue
        else:
            prefix = ""
            is_final = bool(numbers) and number > max(numbers) and weights.keys() <= _NAMELESS
            named = {name: f"decoder.final_layernorm.{name}" if is_final else _outside(name) for name in weights}
        if unknown := [name for name, our in named.items() if our is None or prefix + our in parts]:
            raise not_known(layers.path, [f"{name} of layer {number}" for name in unknown])
        parts |= {f"{prefix}{our}": weights[name] for name, our in named.items()}
        if prefix and f"{prefix}{_GATE}" in parts and f"{prefix}{_UP}" in parts:
            halves = zip(parts.pop(f"{prefix}{_GATE}"), parts.pop(f"{prefix}{_UP}"), strict=True)
            parts[f"{prefix}mlp.linear_fc1.weight"] = [joined([gate, up], 0) for gate, up in halves]
    return parts


def _in_layer(name: str) -> str | None:
    if name in {_GATE, _UP}:
        return name
    module, _, kind = name.rpartition(".")
    kind = "weight" if kind == "scale" else kind  # GPT-NeoX's RMSNorm
    return f"{_MLP[module]}.{kind}" if module in _MLP else name_in_layer(f"{module}.{kind}")


def _outside(name: str) -> str | None:
    module, _, kind = name.rpartition(".")
    kind = "weight" if kind == "scale" else kind
    return f"{_OUTSIDE[module]}.{kind}" if module in _OUTSIDE and kind in _NAMELESS else None
