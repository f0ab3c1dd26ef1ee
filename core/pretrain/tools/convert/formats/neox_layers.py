"""Files of DeepSpeed's pipelines, of each layer and tensor-parallel rank, by GPT-NeoX and Megatron-DeepSpeed.

`layer_NN-model_TT-model_states.pt` (ckpt_layer_path in deepspeed/runtime/pipe/module.py). NN counts the modules of the
pipeline; functions without weights have numbers without files. Without pipeline (pipe_parallel_size 0) the weights are
in mp_rank_XX with names `sequential.NN.`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrain.errors import CheckpointError, DamageError
from pretrain.tools.convert.rank_parts import by_name, weights_in
from pretrain.tools.convert.stored import torch_file_tensors
from pretrain.tools.convert.weight_names import some_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pretrain.tools.convert.lazy_tensor import LazyTensor


_FILE = re.compile(r"layer_(\d+)-model_(\d+)-model_states\.pt")
STATES = "mp_rank_00_model_states.pt"
_NORM = re.compile(r"input_layernorm\.(weight|scale)$")
"""A weight that every transformer layer has, and nothing else; `scale` is GPT-NeoX's RMSNorm."""

_FINAL_NORM = re.compile(r"(norm\.)?(weight|scale)$")
"""The norm after the layers; Megatron-DeepSpeed's has no name."""


def layer_files(folder: Path) -> dict[int, list[Path]]:
    """Return each layer's files, one for each tensor-parallel rank, by the layer's number; none in another format.

    Raises:
        CheckpointError: a rank's file is missing.
    """
    found = [match for entry in folder.glob("layer_*-model_*") if (match := _FILE.fullmatch(entry.name))]
    if not found:
        return {}
    tensor = max(int(match[2]) for match in found) + 1
    if tensor > len(found):
        msg = f"{folder} has files up to rank {tensor - 1} and only {len(found)} of them.\nCopy the others there."
        raise CheckpointError(msg)
    there = {(int(match[1]), int(match[2])): match[0] for match in found}
    numbers = sorted({number for number, _ in there})
    missing = [(number, rank) for number in numbers for rank in range(tensor) if (number, rank) not in there]
    if missing:
        names = [f"layer_{number:02d}-model_{rank:02d}-model_states.pt" for number, rank in missing]
        msg = f"{folder} lacks files of the {tensor} tensor-parallel ranks: {some_of(names)}.\nCopy them there."
        raise CheckpointError(msg)
    return {number: [folder / there[number, rank] for rank in range(tensor)] for number in numbers}


def state_of(path: Path) -> dict[str, Any]:
    """Return what a file holds.

    Raises:
        DamageError: it is no dict.
    """
    state = torch_file_tensors(path)
    if not isinstance(state, dict):
        msg = f"{path} does not map names to weights.\nCopy it again."
        raise DamageError(msg)
    return state


def transformer_layers(folder: Path, layers: Mapping[int, Iterable[Any]]) -> list[int]:
    """Return the numbers of the transformer layers.

    Args:
        folder: of the checkpoint, for errors.
        layers: names of the weights in each numbered file.

    Raises:
        CheckpointError: a number between them is missing, or the first or the last one.
    """
    numbers = [number for number, names in layers.items() if any(map(_NORM.search, map(str, names)))]
    _require_all_layers(folder, numbers)
    if numbers:
        _require_ends(folder, numbers, {number: {str(name) for name in names} for number, names in layers.items()})
    return numbers


def rotary_percent(size: int, head: int, told: object = None) -> float:
    """Return the fraction of a head that GPT-NeoX, megatron-core and transformers make `size` by int(head * fraction).

    Args:
        size: dimensions of a head that are rotated.
        head: all of them.
        told: a configuration's fraction, which is returned if it fits.
    """
    if isinstance(told, int | float) and 0 < told <= 1 and int(head * told) == size:
        return told
    percent = size / head
    while int(head * percent) < size:  # 30 / 88 of 88 are 29.999999999999996
        percent = math.nextafter(percent, math.inf)
    return percent


def _require_all_layers(folder: Path, numbers: list[int]) -> None:
    """Require that the transformer layers' numbers follow one another."""
    if numbers and (missing := sorted(set(range(min(numbers), max(numbers))) - set(numbers))):
        msg = f"{folder} lacks the files of layer {missing[0]} (layer_{missing[0]:02d}-model_*).\nCopy them there."
        raise CheckpointError(msg)


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


_SEQUENTIAL = re.compile(r"sequential\.(\d+)\.(.+)")
_RANK = re.compile(r"mp_rank_(\d+)_model_states\.pt")
_FREQUENCIES = "rotary_emb.inv_freq"


OF_MEGATRON = "self_attention."
"""Begin of a name that GPT-NeoX's layers do not have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layers:
    """Weights as they are stored.

    Attributes:
        path: the checkpoint's folder.
        parts: number of the module -> name inside it -> part on each tensor-parallel rank.
        states: what mp_rank_00_model_states.pt holds; nothing where it is not there.
        tensor: number of tensor-parallel ranks.
        rotary_size: dimensions of a head that are rotated, where frequencies are stored.
    """

    path: Path
    parts: dict[int, dict[str, list[LazyTensor]]]
    states: dict[str, Any]
    tensor: int
    rotary_size: int | None


def stored_layers(folder: Path) -> Layers | None:
    """Return the numbered modules of a checkpoint, or None if it has none.

    Raises:
        CheckpointError: a rank's file is missing, or of another save than the others.
        DamageError: a file is damaged.
    """
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
        msg = f"{path} is of iteration {first}, and {other.name} of {second}.\nCopy the files of one checkpoint."
        raise CheckpointError(msg)


def _sequential(folder: Path, states: dict[str, Any]) -> dict[int, list[tuple[Path, dict[str, Any]]]]:
    """Return the modules of a model that was trained without pipeline.

    Raises:
        CheckpointError: a rank's file is missing.
    """
    module = states.get("module")
    if not isinstance(module, dict) or not any(_SEQUENTIAL.fullmatch(str(name)) for name in module):
        return {}
    ranks = sorted(int(found[1]) for entry in folder.iterdir() if (found := _RANK.fullmatch(entry.name)))
    count = max(ranks[-1] + 1, states["mp_world_size"] if type(states.get("mp_world_size")) is int else 1)
    missing = next((rank for rank in range(count) if rank not in ranks), None)
    if missing is not None:
        msg = f"{folder} lacks mp_rank_{missing:02d}_model_states.pt of {count} ranks.\nCopy it there."
        raise CheckpointError(msg)
    modules: dict[int, list[tuple[Path, dict[str, Any]]]] = {}
    for rank in ranks:
        path = folder / f"mp_rank_{rank:02d}_model_states.pt"
        for number, state in _by_number(state_of(path).get("module")).items():
            modules.setdefault(number, []).append((path, state))
    uneven = next((number for number, found in modules.items() if len(found) != len(ranks)), None)
    if uneven is not None:
        msg = (
            f"{folder}: not all of its {len(ranks)} ranks have sequential.{uneven}.\nCopy the files of one checkpoint."
        )
        raise CheckpointError(msg)
    return modules


def _by_number(module: Any) -> dict[int, dict[str, Any]]:
    numbered: dict[int, dict[str, Any]] = {}
    for name, value in module.items() if isinstance(module, dict) else ():
        found = _SEQUENTIAL.fullmatch(str(name))
        number, inside = (int(found[1]), found[2]) if found else (0, str(name))  # a name that is not known is refused
        numbered.setdefault(number, {})[inside] = value
    return numbered


def rotary_size(state: Mapping[str, Any]) -> int | None:
    """Return the dimensions of a head that are rotated, where a layer holds frequencies."""
    frequencies = next((value for name, value in state.items() if str(name).endswith(_FREQUENCIES)), None)
    shape: tuple[int, ...] = getattr(frequencies, "shape", ())
    return 2 * shape[0] if len(shape) == 1 else None
