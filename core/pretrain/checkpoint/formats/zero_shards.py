"""DeepSpeed's own format: a file of weights for each model-parallel rank, and optimizer state divided by ZeRO.

`mp_rank_XX_model_states.pt`, with ZeRO-3 `zero_pp_rank_D_mp_rank_XX_model_states.pt` (_get_ckpt_name in
deepspeed/runtime/engine.py); after ds_to_universal.py a folder `zero/` with one folder a weight.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from pretrain.checkpoint.formats import torch_file
from pretrain.checkpoint.formats.dtypes import dtype_names
from pretrain.checkpoint.formats.location import files_in, total_size
from pretrain.checkpoint.formats.megatron_weights import (
    count,
    flat_weights,
    model_of,
    number_of_layers,
    settings_of_args,
    whole_shape,
)
from pretrain.checkpoint.formats.summary import Parts, Summary
from pretrain.errors import CheckpointError, DamageError

if TYPE_CHECKING:
    from pathlib import Path

    from pretrain.checkpoint.formats.megatron_weights import (
        Shapes,
    )

_MODEL = re.compile(r"(?:zero_pp_rank_(?P<data>\d+)_)?mp_rank_(?P<tensor>\d+)_model_states\.pt")
_OPTIMIZER = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(?P<data>\d+)_mp_rank_(?P<tensor>\d+)_optim_states\.pt")
_UNIVERSAL = "zero"


def describe(folder: Path) -> Summary | None:
    """Describe the checkpoint in a folder, or return None if it is of another format.

    Raises:
        CheckpointError: a rank's file is missing, or one holds objects that could run code.
        DamageError: a file is cut off, or lacks the model.
    """
    models = _matches(folder, _MODEL)
    if not models:
        return None
    is_universal = (folder / _UNIVERSAL).is_dir()
    tensor = _number(models, "tensor")
    optimizers = _matches(folder, _OPTIMIZER)
    _require_all(folder, models, tensor, [match for match in models if match["data"]] or models)
    if optimizers and not is_universal:
        _require_all(folder, optimizers, tensor, optimizers)
    first = min(models, key=lambda match: (int(match["tensor"]), int(match["data"] or 0)))
    state = torch_file.read(folder / first[0])
    if not isinstance(state, dict) or "module" not in state:
        msg = f"{folder / first[0]} holds no model (a key `module`)."
        raise DamageError(msg)
    shapes, dtypes = _weights(state, tensor)
    version, iteration = state.get("ds_version"), state.get("iteration", state.get("global_steps"))
    args = getattr(state.get("args"), "__dict__", {})
    files = files_in(folder)
    return Summary(
        path=folder,
        format="DeepSpeed, universal" if is_universal else "DeepSpeed",
        version=None if version is None else f"DeepSpeed {version}",
        iteration=iteration if isinstance(iteration, int) else None,
        model=model_of(shapes) | {"num_layers": number_of_layers(shapes)} | settings_of_args(args),
        parameters=count(shapes.values()),
        parts=Parts(tensor=tensor, data=_number(optimizers or models, "data")),
        dtypes=dtypes,
        contents=_contents(state, has_optimizer=bool(optimizers) or is_universal),
        files=len(files),
        size=total_size(files),
    )


def _matches(folder: Path, pattern: re.Pattern[str]) -> list[re.Match[str]]:
    return [match for entry in sorted(folder.glob("*_states.pt")) if (match := pattern.fullmatch(entry.name))]


def _number(matches: list[re.Match[str]], axis: str) -> int:
    return max(int(match[axis] or 0) for match in matches) + 1


def _require_all(folder: Path, found: list[re.Match[str]], tensor: int, divided: list[re.Match[str]]) -> None:
    """Require a file for each pair of model-parallel and data-parallel rank."""
    there = {(int(match["tensor"]), int(match["data"] or 0)) for match in divided}
    wanted = {(rank, data) for rank in range(tensor) for data in range(_number(found, "data"))}
    if missing := sorted(wanted - there):
        shown = ", ".join(f"zero_pp_rank_{data}_mp_rank_{rank:02d}" for rank, data in missing[:3])
        msg = f"{folder} lacks the files of {len(missing)} of {len(wanted)} ranks: {shown}.\nCopy them there."
        raise CheckpointError(msg)


def _weights(state: dict[str, Any], tensor: int) -> tuple[Shapes, tuple[str, ...]]:
    """Return the whole shapes and the dtypes; ZeRO-3 keeps shapes apart, since `module` has empty tensors there."""
    weights = flat_weights(state["module"])
    divided = {name: tuple(weight.shape) for name, weight in weights.items()}
    listed = state.get("param_shapes") or []
    for group in listed if isinstance(listed, list) else [listed]:
        divided |= {name: tuple(shape) for name, shape in group.items() if isinstance(shape, torch.Size)}
    shapes = {name: whole_shape(name, shape, tensor) for name, shape in divided.items()}
    return shapes, dtype_names(weight.dtype for weight in weights.values())


def _contents(state: dict[str, Any], *, has_optimizer: bool) -> tuple[str, ...]:
    there = {
        "weights": True,
        "optimizer": has_optimizer or state.get("optimizer") is not None,
        "rng": any(key in state for key in ("rng_state", "random_rng_state", "torch_rng_state")),
        "schedule": any(state.get(key) is not None for key in ("lr_scheduler", "opt_param_scheduler")),
    }
    return tuple(name for name, is_there in there.items() if is_there)
