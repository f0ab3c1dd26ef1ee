"""Numbered modules of a pipeline with their weights on each tensor-parallel rank."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrain.errors import CheckpointError
from pretrain.tools.convert.dialects.rank_parts import by_name, weights_in
from pretrain.tools.convert.formats.pipeline_layers import STATES, dict_of_layer, iteration_of, layer_files
from pretrain.tools.convert.weights.stored import torch_file_tensors

if TYPE_CHECKING:
    from pathlib import Path

    from pretrain.tools.convert.weights.lazy_tensor import LazyTensor

_SEQUENTIAL = re.compile(r"sequential\.(\d+)\.(.+)")
_RANK = re.compile(r"mp_rank_(\d+)_model_states\.pt")
_FREQUENCIES = "rotary_emb.inv_freq"


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
    states = _dict(folder / STATES) if (folder / STATES).is_file() else {}
    if files := layer_files(folder):
        modules = {number: [(path, _dict(path)) for path in paths] for number, paths in files.items()}
    else:
        modules = _sequential(folder, states)
    if not modules:
        return None
    _require_one_save(folder)
    rotary = next((size for ranks in modules.values() if (size := _rotary_size(ranks[0][1]))), None)
    parts = {
        number: by_name([(path, weights_in(path, state)) for path, state in ranks]) for number, ranks in modules.items()
    }
    return Layers(path=folder, parts=parts, states=states, tensor=len(next(iter(modules.values()))), rotary_size=rotary)


def _dict(path: Path) -> dict[str, Any]:
    return dict_of_layer(path, torch_file_tensors(path))


def _require_one_save(folder: Path) -> None:
    """Require one iteration in the files of all ranks; those of layers do not tell it."""
    found: dict[int | None, Path] = {}
    for path in sorted(folder.iterdir()):
        if _RANK.fullmatch(path.name):
            found.setdefault(iteration_of(_dict(path), folder), path)
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
        for number, state in _by_number(_dict(path).get("module")).items():
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


def _rotary_size(state: dict[str, Any]) -> int | None:
    frequencies = next((value for name, value in state.items() if str(name).endswith(_FREQUENCIES)), None)
    shape: tuple[int, ...] = getattr(frequencies, "shape", ())
    return 2 * shape[0] if len(shape) == 1 else None
