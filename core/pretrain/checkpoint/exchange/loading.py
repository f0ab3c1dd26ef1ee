"""Weights of other programs' checkpoints, loaded into an engine that is about to train."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from megatron.core.dist_checkpointing.mapping import (
    ShardedObject,
    ShardedTensor,
    ShardedTensorFactory,
)

from pretrain.checkpoint.contents import Loaded
from pretrain.checkpoint.dialects.registry import read_weights
from pretrain.checkpoint.exchange.foreign import foreign_summary, require_fitting
from pretrain.checkpoint.saved_schedule import continue_schedule
from pretrain.checkpoint.weights.lazy_tensor import with_rows
from pretrain.checkpoint.weights.model_weights import EMBEDDING, OUTPUT
from pretrain.checkpoint.weights.sharded_names import weight_names
from pretrain.collective_errors import first_problem, of_first_rank
from pretrain.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from pretrain.checkpoint.contents import Saved
    from pretrain.checkpoint.weights.lazy_tensor import LazyTensor
    from pretrain.checkpoint.weights.model_weights import ModelWeights
    from pretrain.recipe.sections.model import ModelSection


def load(engine: Saved, path: Path, *, finetune: bool) -> Loaded:
    """Load the weights of another program's checkpoint; all ranks call it together, each reads its part.

    Args:
        engine: takes the weights.
        path: `checkpoint.load`.
        finetune: whether the run starts at iteration 0; otherwise iteration, samples and schedule are taken where the
            files tell them.

    Raises:
        CheckpointError: the checkpoint is incomplete, or of another model; on all ranks.
        DamageError: a file is damaged.
    """
    weights = of_first_rank(partial(_weights, path, engine))  # complains once
    engine.state.load(partial(_fill, path, engine), None)
    notices = [f"{weights['format']}: weights alone; the optimizer starts without state"]
    progress = {"iteration": 0, "consumed_samples": 0, "skipped_iterations": 0}
    if not finetune:
        progress |= {"iteration": weights["iteration"] or 0, "consumed_samples": weights["consumed_samples"] or 0}
        if weights["iteration"] and weights["consumed_samples"] is None:
            notices.append(f"iteration {weights['iteration']}, but not the samples: data are read from their beginning")
        notices += continue_schedule(engine.schedule, weights["schedule"], progress["consumed_samples"], engine.recipe)
    return Loaded(progress=progress, notices=notices)


def _weights(path: Path, engine: Saved) -> dict[str, Any]:
    """Return what the training needs to know of a checkpoint that fits it."""
    found = _read(path, engine)
    return {
        "format": found.format,
        "iteration": found.iteration,
        "consumed_samples": found.consumed_samples,
        "schedule": dict(found.schedule),
    }


def _read(path: Path, engine: Saved) -> ModelWeights:
    summary = foreign_summary(path)
    if summary is not None:
        require_fitting(summary, engine.recipe)
    weights = read_weights(path, _settings(engine.recipe.model))
    there = weights.vocab_size or weights.rows
    if there < engine.vocab_size or (weights.vocab_size is not None and there != engine.vocab_size):
        msg = (
            f"{weights.path} ({weights.format}) has {there:,} tokens, the recipe's tokenizer {engine.vocab_size:,}.\n"
            "Name the tokenizer that the model was trained with."
        )
        raise CheckpointError(msg)
    return weights


def _settings(model: ModelSection) -> dict[str, Any]:
    """Return the recipe's settings, from which comes what the files do not tell."""
    return model.model_dump(exclude={"hidden_dropout", "attention_dropout"})


def _fill(path: Path, engine: Saved, request: dict[str, Any]) -> dict[str, Any]:
    """Read what is asked for by megatron-core's sharded tensors; all ranks call it together."""
    filled, problem = None, None
    try:
        weights = _read(path, engine)
        filled = _filled(request, _Source(weights, engine.vocab_size))
    except (CheckpointError, OSError) as error:
        problem = str(error)
    if problem := first_problem(problem):
        raise CheckpointError(problem)
    return filled  # type: ignore[return-value]  # it is there if no rank has a problem


class _Source:
    """The weights by the keys of a sharded checkpoint."""

    def __init__(self, weights: ModelWeights, vocab_size: int) -> None:
        self._tensors: Mapping[str, LazyTensor] = weights.with_vocabulary(vocab_size).tensors

    def read(self, wanted: ShardedTensor) -> Tensor:
        """Return this rank's part of a weight, in the dtype that is asked for."""
        place = wanted.global_offset[0] if wanted.prepend_axis_num else 0
        names = {number or 0: name for name, number in weight_names(wanted.key, wanted.global_shape[0])}
        name = names[place]
        offsets = wanted.global_offset[wanted.prepend_axis_num :]
        shape = wanted.local_shape
        tensor = self._tensors[name]
        if name in {EMBEDDING, OUTPUT}:
            tensor = with_rows(tensor, wanted.global_shape[0])
        values = tensor.rows(offsets[0], offsets[0] + shape[0])
        if len(shape) > 1:
            values = values.narrow(1, offsets[1], shape[1])
        return values.to(wanted.dtype).contiguous()


def _filled(wanted: Any, source: _Source) -> Any:
    if isinstance(wanted, ShardedTensorFactory):
        return wanted.merge_fn(_filled(wanted.build(), source))
    if isinstance(wanted, ShardedTensor):
        return source.read(wanted)
    if isinstance(wanted, dict):
        return {key: _filled(value, source) for key, value in wanted.items()}
    if isinstance(wanted, list):
        return [_filled(value, source) for value in wanted]
    return None if isinstance(wanted, ShardedObject) else wanted  # extra states, which only Transformer Engine fills
