"""DeepSpeed's own format: a file of weights for each model-parallel rank, and optimizer state divided by ZeRO.

`mp_rank_XX_model_states.pt`, with ZeRO-3 `zero_pp_rank_D_mp_rank_XX_model_states.pt` (_get_ckpt_name in
deepspeed/runtime/engine.py); after ds_to_universal.py a folder `zero/` with one folder a weight.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from pretrain.checkpoint import torch_file
from pretrain.errors import CheckpointError, DamageError
from pretrain.tools.convert.formats.dtypes import dtype_names
from pretrain.tools.convert.formats.location import extent
from pretrain.tools.convert.formats.megatron_weights import (
    args_of,
    bounded,
    count,
    flat_weights,
    model_of,
    number_of_layers,
    require_sizes,
    settings_of_args,
    whole_shape,
)
from pretrain.tools.convert.formats.summary import Parts, Summary, contents

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pretrain.tools.convert.formats.megatron_weights import Shapes

_MODEL = re.compile(r"(?:zero_pp_rank_(?P<data>\d+)_)?mp_rank_(?P<tensor>\d+)_model_states\.pt")
_OPTIMIZER = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(?P<data>\d+)_mp_rank_(?P<tensor>\d+)_optim_states\.pt")
UNIVERSAL = "zero"
"""Folder of a universal checkpoint's weights."""

_MOST_RANKS = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardFiles:
    """The files of a checkpoint.

    Attributes:
        models: (model-parallel rank, data-parallel rank) -> file of the model; without ZeRO-3 the second is 0.
        optimizers: the same of ZeRO's shards; empty without ZeRO.
        tensor: number of model-parallel ranks.
        is_universal: whether each weight has a folder of its own (ds_to_universal.py).
    """

    models: Mapping[tuple[int, int], Path]
    optimizers: Mapping[tuple[int, int], Path]
    tensor: int
    is_universal: bool

    @property
    def data(self) -> int:
        """Number of data-parallel ranks among which ZeRO divides."""
        return max(data for _, data in self.optimizers or self.models) + 1


def shard_files(folder: Path) -> ShardFiles | None:
    """Return the files of DeepSpeed's checkpoint in a folder, or None if it is of another format.

    Raises:
        CheckpointError: a rank's file is missing.
    """
    models = _matches(folder, _MODEL)
    if not models:
        return None
    is_universal = (folder / UNIVERSAL).is_dir()
    optimizers = _matches(folder, _OPTIMIZER)
    tensor = _number(models, "tensor")
    divided = [match for match in models if match["data"]] or models
    _require_all(folder, models, tensor, divided)
    if optimizers and not is_universal:
        _require_all(folder, optimizers, tensor, optimizers)
    return ShardFiles(
        models=_by_rank(folder, divided),
        optimizers={} if is_universal else _by_rank(folder, optimizers),
        tensor=tensor,
        is_universal=is_universal,
    )


def describe(folder: Path) -> Summary | None:
    """Describe the checkpoint in a folder, or return None if it is of another format.

    Raises:
        CheckpointError: a rank's file is missing, or one holds objects that could run code.
        DamageError: a file is cut off, or lacks the model.
    """
    found = shard_files(folder)
    if found is None:
        return None
    state = torch_file.read(found.models[0, 0])
    if not isinstance(state, dict) or "module" not in state:
        msg = f"{found.models[0, 0]} holds no model (a key `module`)."
        raise DamageError(msg)
    shapes, dtypes = _weights(state, found.tensor)
    has_experts = any(folder.glob("layer_*_expert_*")) or any(folder.glob("expp_rank_*"))
    has_moments = found.is_universal and any(folder.glob(f"{UNIVERSAL}/*/exp_avg.pt"))
    if not found.is_universal:
        require_world(folder, state, found)
    version, iteration = state.get("ds_version"), state.get("iteration", state.get("global_steps"))
    files, size = extent(folder)
    return Summary(
        path=folder,
        format=format_name(found),
        version=None if version is None else f"DeepSpeed {bounded(version)}",
        iteration=iteration if isinstance(iteration, int) else None,
        model=model_of(shapes, number_of_layers(shapes)) | settings_of_args(args_of(state)),
        parameters=None if has_experts else count(shapes, found.tensor),
        parts=Parts(tensor=found.tensor, data=found.data),
        dtypes=dtypes,
        contents=contents(
            optimizer=bool(found.optimizers) or has_moments or state.get("optimizer") is not None,
            rng=any(key in state for key in ("rng_state", "random_rng_state", "torch_rng_state")),
            schedule=any(state.get(key) is not None for key in ("lr_scheduler", "opt_param_scheduler")),
        ),
        files=files,
        size=size,
    )


def format_name(found: ShardFiles) -> str:
    """Return the format's name."""
    return "DeepSpeed, universal" if found.is_universal else "DeepSpeed"


def require_world(folder: Path, state: Mapping[str, Any], found: ShardFiles) -> None:
    """Require that there are files of as many ranks as a rank's state says.

    Raises:
        CheckpointError: there are not.
    """
    sizes = {"mp_world_size": found.tensor} | ({"dp_world_size": found.data} if found.optimizers else {})
    require_sizes(folder, state, sizes)


def listed(groups: Any) -> Shapes:
    """Return the shapes by name of a list of groups of parameters, or of one."""
    return {name: shape for group in listed_groups(groups) for name, shape in group.items()}


def listed_groups(groups: Any) -> list[Shapes]:
    """Return the shapes by name of each group of parameters, in their order, of `param_shapes` of any version."""
    found = [group for group in (groups if isinstance(groups, list) else [groups]) if isinstance(group, dict)]
    return [
        {str(name): tuple(shape) for name, shape in group.items() if isinstance(shape, torch.Size)} for group in found
    ]


def _matches(folder: Path, pattern: re.Pattern[str]) -> list[re.Match[str]]:
    return [match for entry in sorted(folder.glob("*_states.pt")) if (match := pattern.fullmatch(entry.name))]


def _by_rank(folder: Path, matches: list[re.Match[str]]) -> dict[tuple[int, int], Path]:
    return {(int(match["tensor"]), int(match["data"] or 0)): folder / match[0] for match in matches}


def _number(matches: list[re.Match[str]], axis: str) -> int:
    return max(int(match[axis] or 0) for match in matches) + 1


def _require_all(folder: Path, found: list[re.Match[str]], tensor: int, divided: list[re.Match[str]]) -> None:
    """Require a file for each pair of model-parallel and data-parallel rank."""
    there = {(int(match["tensor"]), int(match["data"] or 0)) for match in divided}
    if tensor * _number(found, "data") > _MOST_RANKS:
        msg = f"{folder} has a file of rank {_number(found, 'data') - 1}, which no training has.\nRemove it."
        raise CheckpointError(msg)
    wanted = {(rank, data) for rank in range(tensor) for data in range(_number(found, "data"))}
    if missing := sorted(wanted - there):
        shown = ", ".join(f"zero_pp_rank_{data}_mp_rank_{rank:02d}" for rank, data in missing[:3])
        msg = f"{folder} lacks the files of {len(missing)} of {len(wanted)} ranks: {shown}.\nCopy them there."
        raise CheckpointError(msg)


def _weights(state: dict[str, Any], tensor: int) -> tuple[Shapes, tuple[str, ...]]:
    """Return the whole shapes and the dtypes; ZeRO-3 keeps shapes apart, since `module` has empty tensors there."""
    weights = flat_weights(state["module"])
    divided = listed(state.get("param_shapes")) | listed(state.get("frozen_param_shapes")) or {
        name: tuple(weight.shape) for name, weight in weights.items()
    }
    for name in (*(state.get("shared_params") or ()), *(state.get("buffer_names") or ())):
        divided.pop(name, None)
    shapes = {name: whole_shape(name, shape, tensor) for name, shape in divided.items()}
    return shapes, dtype_names(weight.dtype for weight in weights.values())
