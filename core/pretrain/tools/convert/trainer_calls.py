"""What the trainer calls to start from another program's checkpoint: see `pretrain.checkpoint.foreign_checkpoints`."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch.distributed as dist

from pretrain.checkpoint import torch_file
from pretrain.checkpoint.checksums import SMALL_FILES, Share
from pretrain.checkpoint.contents import Loaded
from pretrain.checkpoint.folder import LATEST, folder_name
from pretrain.checkpoint.identity import structure
from pretrain.checkpoint.saved_schedule import continue_schedule
from pretrain.checkpoint.sharded_format import COMMON, PREFIX, weight_names
from pretrain.collectives import first_problem, on_rank0
from pretrain.errors import CheckpointError
from pretrain.report.plain_text import some_of
from pretrain.stores.local_copies import shown_place
from pretrain.tools.convert.lazy_tensor import with_rows
from pretrain.tools.convert.model_weights import EMBEDDING, LATEST_OF_DEEPSPEED, OUTPUT, RELEASE, dtype_name
from pretrain.tools.convert.registry import read_weights, recognized, summary_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from megatron.core.dist_checkpointing.mapping import ShardedTensor
    from torch import Tensor

    from pretrain.bridge.deepspeed.zero_step import LossScaler
    from pretrain.checkpoint.contents import Counters, Saved
    from pretrain.recipe import Recipe
    from pretrain.recipe.sections.model import ModelSection
    from pretrain.tools.convert.model_weights import CheckpointSummary, ModelWeights

__all__ = ["foreign_summary", "load", "require_fitting", "summary_of"]

T = TypeVar("T")
_HEADS = frozenset({"num_attention_heads", "num_query_groups"})
# settings without which some files cannot be read: releases of 2019; GPT-NeoX's RMSNorm of before May 2025, and its
# weights without their configuration
_NEEDED = (
    frozenset[str](),
    _HEADS,
    _HEADS | {"layernorm_epsilon"},
    _HEADS | {"activation", "parallel_residual", "position_embedding_type"},
)

_OURS = "pretrain"
_LONGEST = 32  # digits of an iteration


def foreign_summary(path: Path) -> CheckpointSummary | None:
    """Return a summary of another program's checkpoint; None if the folder has one of ours, or none at all."""
    if not path.is_dir() or _has_ours(path):
        return None
    summary = recognized(path)
    return None if summary is None or summary.format == _OURS else summary


def require_fitting(summary: CheckpointSummary, recipe: Recipe) -> None:
    """Check that a checkpoint is of the recipe's model, as far as its files tell."""
    ours, there = structure(recipe.model), {**summary.model, **_told(summary.path, recipe.model)}
    if recipe.model.position_embedding_type == "rope":
        ours.pop("max_position_embeddings")  # no weight depends on it
    if wrong := [name for name, value in ours.items() if name in there and there[name] != value]:
        pairs = some_of([f"model.{name} {there[name]} (recipe: {ours[name]})" for name in wrong])
        msg = (
            f"{shown_place(summary.path)} ({summary.format}) is of another model: {pairs}.\n"
            f"`pretrain checkpoint recipe {shown_place(summary.path)}` prints the section that fits.\n"
            "Change the recipe, or choose another checkpoint."
        )
        raise CheckpointError(msg)


def _told(path: Path, ours: ModelSection) -> dict[str, Any]:
    """Return the settings that the files tell, with as few of ours as they need to be read."""
    for keys in _NEEDED:
        with suppress(CheckpointError):
            model = read_weights(path, {name: getattr(ours, name) for name in keys}, SMALL_FILES).model
            return {name: getattr(model, name) for name in model.model_fields_set - keys}
    return {}


def _has_ours(path: Path) -> bool:
    """Say whether the latest checkpoint is of this program, or cannot be read: our own reader finds out why."""
    tracker = path / LATEST
    if not tracker.is_file():
        return False
    number = tracker.read_text(errors="replace").split("\n", 1)[0].strip()
    if not (number.isascii() and number.isdecimal() and len(number) <= _LONGEST):
        return number != RELEASE
    common = path / folder_name(int(number)) / COMMON
    if not common.parent.is_dir() and (path / LATEST_OF_DEEPSPEED).is_file():
        return False  # Megatron-DeepSpeed writes both trackers
    if not common.is_file():
        return not any(common.parent.glob("mp_rank_*"))
    try:
        content = torch_file.read(common)
    except CheckpointError:
        return True
    return not isinstance(content, dict) or "format" in content


def load(engine: Saved, path: Path, *, finetune: bool) -> Loaded:
    """Load another program's checkpoint; all ranks call it together, each reads its part."""
    from pretrain.checkpoint.storage import require_same_weights  # noqa: PLC0415  megatron-core

    def complain() -> None:
        if (summary := foreign_summary(path)) is not None:
            require_fitting(summary, engine.recipe)

    on_rank0(complain)  # once
    weights = _on_all_ranks(partial(_read, path, engine))
    require_same_weights(engine, weights.path, weights.tensors)
    counters = None if finetune else _counters(weights, engine)
    read = partial(_part_of_rank, weights, engine.vocab_size)
    engine.state.load(lambda request: _on_all_ranks(partial(_filled, request, read)), counters)
    taken = "weights alone; the optimizer starts without state"
    if counters is not None:
        taken = "weights and optimizer; random generators are seeded from train.seed"
    notices = [f"{weights.format}: {taken}"]
    progress = {"iteration": 0, "consumed_samples": 0, "skipped_iterations": 0}
    if not finetune:
        progress |= {"iteration": weights.iteration or 0, "consumed_samples": weights.consumed_samples or 0}
        if weights.iteration and weights.consumed_samples is None:
            what = f"the files name iteration {weights.iteration}, but not how many samples were read"
            notices.append(f"{what}: data is read from the beginning")
        if not weights.schedule:
            samples = f"{progress['consumed_samples']:,} samples"
            notices.append(f"the files have no schedule: the recipe's is used, at {samples}")
        notices += continue_schedule(engine.schedule, weights.schedule, progress["consumed_samples"], engine.recipe)
    return Loaded(progress=progress, notices=notices)


def _read(path: Path, engine: Saved) -> ModelWeights:
    share = Share(dist.get_rank(), dist.get_world_size())
    # the recipe's settings stand in for what the files do not tell
    given = engine.recipe.model.model_dump(exclude={"hidden_dropout", "attention_dropout"})
    weights = read_weights(path, given, share)
    if not weights.fits(engine.vocab_size):
        msg = (
            f"{shown_place(weights.path)} ({weights.format}) has {weights.tokens:,} tokens, and the recipe's tokenizer "
            f"{engine.vocab_size:,}: padding does not explain the difference.\n"
            "Name the tokenizer that the model was trained with."
        )
        raise CheckpointError(msg)
    return weights


def _on_all_ranks(read: Callable[[], T]) -> T:
    """Return what a function reads; an error of one rank is raised on all, which call it together."""
    found, problem = None, None
    try:
        found = read()
    except (CheckpointError, OSError) as error:
        problem = str(error)
    if problem := first_problem(problem):
        raise CheckpointError(problem)
    return found  # type: ignore[return-value]  # it is there if no rank has a problem


def _counters(weights: ModelWeights, engine: Saved) -> Counters | None:
    """Return the counts of the checkpoint's optimizer; None if it has none that fits the run's precision."""
    optimizer = weights.optimizer
    if optimizer is None or dtype_name(weights.tensors[EMBEDDING].dtype) != engine.recipe.precision.dtype:
        return None
    scaler = optimizer.loss_scaler
    return {"step": optimizer.step, "loss_scaler": None if scaler is None else cast("LossScaler", dict(scaler))}


def _part_of_rank(weights: ModelWeights, vocab_size: int, wanted: ShardedTensor) -> Tensor:
    """Return this rank's part of a weight or of its state, by our key for it, in the dtype that is asked for."""
    state, key = "", wanted.key
    if key.startswith(PREFIX):
        state, _, key = key.removeprefix(f"{PREFIX}.").partition(".")
    place = wanted.global_offset[0] if wanted.prepend_axis_num else 0
    name = {number or 0: name for name, number in weight_names(key, wanted.global_shape[0])}[place]
    tensor = weights.tensors[name]
    if state and weights.optimizer is not None:
        tensor = weights.optimizer.tensors.get(f"{state}.{name}", tensor)
    if name in {EMBEDDING, OUTPUT}:
        tensor = with_rows(with_rows(tensor, vocab_size), wanted.global_shape[0])
    first = wanted.global_offset[wanted.prepend_axis_num :]
    values = tensor.rows(first[0], first[0] + wanted.local_shape[0])
    for dim in range(1, len(wanted.local_shape)):
        values = values.narrow(dim, first[dim], wanted.local_shape[dim])
    return values.to(wanted.dtype).contiguous()


def _filled(wanted: Any, read: Callable[[ShardedTensor], Tensor]) -> Any:
    """Read what megatron-core's sharded tensors ask for."""
    from megatron.core.dist_checkpointing import mapping  # noqa: PLC0415  a launcher does without

    if isinstance(wanted, mapping.ShardedTensorFactory):
        return wanted.merge_fn(_filled(wanted.build(), read))
    if isinstance(wanted, mapping.ShardedTensor):
        return read(wanted)
    if isinstance(wanted, dict):
        return {key: _filled(value, read) for key, value in wanted.items()}
    if isinstance(wanted, list):
        return [_filled(value, read) for value in wanted]
    is_extra_state = isinstance(wanted, mapping.ShardedObject)  # only Transformer Engine fills it
    return None if is_extra_state else wanted
