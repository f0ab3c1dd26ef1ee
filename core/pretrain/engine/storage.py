"""A checkpoint: megatron-core's sharded format, readable at any layout and by any engine.

common.pt holds what all ranks agree on: progress, schedule, the model's description, counters. Weights, optimizer state
and generator states are sharded. Reading runs no code: objects are read with torch.load's weights_only,
and the index, which torch unpickles, is looked at before.
"""

from __future__ import annotations

import pickle
from functools import partial
from typing import TYPE_CHECKING, Any

from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingException
from torch.distributed.checkpoint.api import CheckpointException

from pretrain.engine import generators
from pretrain.engine.checkpoint_index import INDEX, check_index
from pretrain.engine.protocol import Loaded
from pretrain.engine.schedule import restore_schedule
from pretrain.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pretrain.engine.protocol import Engine
    from pretrain.recipe import Recipe

FORMAT = 2
"""Raised when a checkpoint written before cannot be read any more."""

_STRUCTURE = (
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "kv_channels",
    "ffn_hidden_size",
    "max_position_embeddings",
    "position_embedding_type",
    "rotary_percent",
    "rotary_base",
    "normalization",
    "activation",
    "add_bias_linear",
    "untie_embeddings_and_output_weights",
    "parallel_residual",
    "embedding_layernorm",
)
_FAULTS = (CheckpointingException, OSError, RuntimeError, KeyError, ValueError, EOFError, pickle.UnpicklingError)
"""What reading a damaged checkpoint raises."""


def save(engine: Engine, directory: Path, progress: Mapping[str, Any]) -> None:
    """Write the engine's state into an empty folder; all ranks together.

    Raises:
        CheckpointError: on every rank, when one cannot write.
    """
    state = engine.state.sharded()
    state |= {
        "format": FORMAT,
        "progress": dict(progress),
        "schedule": engine.schedule.state_dict(),
        "model": _model(engine),
        "counters": engine.state.counters(),
        "dtype": engine.recipe.precision.dtype,
        "samples": _samples(engine.recipe),
        "layout": generators.layout(),
        "rng": generators.sharded_states(),
    }
    try:
        dist_checkpointing.save(state, str(directory))
    except (CheckpointException, CheckpointingException, OSError) as exc:
        msg = f"{directory} cannot be written: {_reason(exc)}\nMake room, or let checkpoint.save name another folder."
        raise CheckpointError(msg) from exc


def load(engine: Engine, directory: Path, *, weights_only: bool) -> Loaded:
    """Read the folder into the engine.

    Raises:
        CheckpointError: the folder is incomplete or damaged, or holds another model or optimizer.
    """
    common = read_common(directory)
    _check(engine, directory, common, weights_only=weights_only)
    engine.state.load(partial(_read, directory), None if weights_only else common["counters"])
    if weights_only:
        return Loaded(progress=common["progress"])
    notices = restore_schedule(engine.schedule, common["schedule"], engine.recipe)
    ours, saved = _samples(engine.recipe), {"data.index": "megatron"} | common["samples"]  # once there was no other
    notices += [
        f"{name}: {ours[name]}, the checkpoint's {saved[name]}: samples come in another order, some for a second time"
        for name in ours
        if None not in (ours[name], saved[name]) and ours[name] != saved[name]
    ]
    if generators.belong_here(common["layout"]):
        generators.restore(_read(directory, {"rng": generators.sharded_states()})["rng"])
    else:
        notices.append("the layout or the device is another one: random generators start anew from train.seed")
    return Loaded(progress=common["progress"], notices=notices)


def read_common(directory: Path) -> dict[str, Any]:
    """Return what all ranks agree on: format, progress, schedule, model, layout.

    Raises:
        CheckpointError: the folder is no checkpoint, incomplete, damaged or of a later format.
    """
    missing = [name for name in ("metadata.json", "common.pt", INDEX) if not (directory / name).is_file()]
    if missing:
        msg = f"{directory} is not a complete checkpoint: {', '.join(missing)} is missing.\nChoose another."
        raise CheckpointError(msg)
    try:
        common: dict[str, Any] = dist_checkpointing.load_common_state_dict(str(directory))
    except _FAULTS as exc:
        raise _damaged(directory, exc) from exc
    if common.get("format") != FORMAT:
        msg = (
            f"{directory} has checkpoint format {common.get('format')}; this version reads {FORMAT}.\n"
            "Use the version of pretrain that wrote it, or choose another checkpoint."
        )
        raise CheckpointError(msg)
    return common


def _read(directory: Path, request: dict[str, Any]) -> dict[str, Any]:
    try:
        check_index(directory)
        loaded: dict[str, Any] = dist_checkpointing.load(request, str(directory))
    except (*_FAULTS, CheckpointException) as exc:
        raise _damaged(directory, exc) from exc
    return loaded


def _model(engine: Engine) -> dict[str, Any]:
    model = engine.recipe.model
    return {name: getattr(model, name) for name in _STRUCTURE} | {"vocab_size": engine.vocab_size}


def _samples(recipe: Recipe) -> dict[str, Any]:
    """What the order of the samples depends on; of data, nothing where a native index knows what was read of it."""
    paths = recipe.data.path or [[part.path, part.weight] for part in recipe.data.blend or ()]
    return {
        "train.seed": recipe.train.seed,
        "data.index": recipe.data.index,
        "data": paths if recipe.data.index == "megatron" else None,
        "data.split": recipe.data.split,
        "model.seq_length": recipe.model.seq_length,
    }


def _check(engine: Engine, directory: Path, common: dict[str, Any], *, weights_only: bool) -> None:
    expected = {f"model.{name}": value for name, value in _model(engine).items()}
    saved = {f"model.{name}": value for name, value in common["model"].items()}
    if not weights_only:
        expected["precision.dtype"], saved["precision.dtype"] = engine.recipe.precision.dtype, common["dtype"]
    differing = [name for name in expected if expected[name] != saved.get(name)]
    if differing:
        pairs = ", ".join(f"{name} {saved.get(name)} (recipe: {expected[name]})" for name in differing[:4])
        msg = f"{directory} is of another run: {pairs}.\nChange the recipe, or choose another checkpoint."
        raise CheckpointError(msg)


def _damaged(directory: Path, error: BaseException) -> CheckpointError:
    return CheckpointError(f"{directory} is damaged: {_reason(error)}\nStart from another checkpoint.")


def _reason(error: BaseException) -> str:
    """Return one line; torch collects the errors of all ranks in an exception whose text is their tracebacks."""
    if isinstance(error, CheckpointException):
        error = next((failure for failure, _ in error.failures.values()), OSError("see the first rank"))
    return (str(error).strip() or type(error).__name__).splitlines()[0]
