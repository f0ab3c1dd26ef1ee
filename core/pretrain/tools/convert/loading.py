"""Load the weights of another program's checkpoint into an engine that is about to train."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch.distributed as dist
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, ShardedTensorFactory

from pretrain.checkpoint.checksums import Share
from pretrain.checkpoint.contents import Loaded
from pretrain.checkpoint.saved_schedule import continue_schedule
from pretrain.checkpoint.sharded_format import PREFIX, weight_names
from pretrain.checkpoint.storage import require_same_weights
from pretrain.collectives import first_problem
from pretrain.errors import CheckpointError
from pretrain.tools.convert.lazy_tensor import with_rows
from pretrain.tools.convert.model_weights import EMBEDDING, OUTPUT
from pretrain.tools.convert.registry import read_weights
from pretrain.tools.convert.summary import dtype_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    from pretrain.bridge.deepspeed.zero_step import LossScaler
    from pretrain.checkpoint.contents import Counters, Saved
    from pretrain.recipe.sections.model import ModelSection
    from pretrain.tools.convert.model_weights import ModelWeights


T = TypeVar("T")


def load(engine: Saved, path: Path, *, finetune: bool) -> Loaded:
    """Load another program's checkpoint; all ranks call it together, each reads its part.

    Args:
        engine: takes the weights, and the optimizer's state where the files have it in a form that any layout reads.
        path: `checkpoint.load`.
        finetune: whether only weights are taken and the run starts at iteration 0; otherwise iteration, samples and
            schedule are taken too where the files tell them.

    Raises:
        CheckpointError: the checkpoint is incomplete, or of another model; on all ranks.
        DamageError: a file is damaged.
    """
    weights = _on_all_ranks(partial(_read, path, engine))
    require_same_weights(engine, weights.path, weights.tensors)
    counters = None if finetune else _counters(weights, engine)
    engine.state.load(partial(_fill, _Source(weights, engine.vocab_size)), counters)
    notices = [_contents_notice(weights, with_optimizer=counters is not None)]
    progress = {"iteration": 0, "consumed_samples": 0, "skipped_iterations": 0}
    if not finetune:
        progress |= {"iteration": weights.iteration or 0, "consumed_samples": weights.consumed_samples or 0}
        if weights.iteration and weights.consumed_samples is None:
            notices.append(f"iteration {weights.iteration}, but not the samples: data are read from their beginning")
        if not weights.schedule:
            notices.append(f"no schedule is told: the recipe's, at {progress['consumed_samples']:,} samples")
        notices += continue_schedule(engine.schedule, weights.schedule, progress["consumed_samples"], engine.recipe)
    return Loaded(progress=progress, notices=notices)


def _read(path: Path, engine: Saved) -> ModelWeights:
    share = Share(dist.get_rank(), dist.get_world_size())
    weights = read_weights(path, _settings(engine.recipe.model), share)
    if not weights.fits(engine.vocab_size):
        msg = (
            f"{weights.path} ({weights.format}) has {weights.tokens:,} tokens, the recipe's "
            f"tokenizer {engine.vocab_size:,}, which padding does not explain.\n"
            "Name the tokenizer that the model was trained with."
        )
        raise CheckpointError(msg)
    return weights


def _on_all_ranks(read: Callable[[], T]) -> T:
    """Return what a function reads; an error of one rank is raised on all, which call it together.

    Raises:
        CheckpointError: the first rank's that has one.
    """
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


def _contents_notice(weights: ModelWeights, *, with_optimizer: bool) -> str:
    if with_optimizer:
        return f"{weights.format}: weights and optimizer; random generators are seeded from train.seed"
    return f"{weights.format}: weights alone; the optimizer starts without state"


def _settings(model: ModelSection) -> dict[str, Any]:
    """Return the recipe's settings, from which comes what the files do not tell."""
    return model.model_dump(exclude={"hidden_dropout", "attention_dropout"})


def _fill(source: _Source, request: dict[str, Any]) -> dict[str, Any]:
    """Read what is asked for by megatron-core's sharded tensors; all ranks call it together."""
    filled: dict[str, Any] = _on_all_ranks(partial(_filled, request, source))
    return filled


class _Source:
    """Weights and optimizer state by the keys of a sharded checkpoint of ours."""

    def __init__(self, weights: ModelWeights, vocab_size: int) -> None:
        self._weights = weights.tensors
        self._states = weights.optimizer.tensors if weights.optimizer is not None else {}
        self._vocab_size = vocab_size

    def read(self, wanted: ShardedTensor) -> Tensor:
        """Return this rank's part of a weight or of its state, in the dtype that is asked for."""
        state, key = "", wanted.key
        if key.startswith(PREFIX):
            state, _, key = key.removeprefix(f"{PREFIX}.").partition(".")
        place = wanted.global_offset[0] if wanted.prepend_axis_num else 0
        name = {number or 0: name for name, number in weight_names(key, wanted.global_shape[0])}[place]
        tensor = self._states.get(f"{state}.{name}", self._weights[name]) if state else self._weights[name]
        if name in {EMBEDDING, OUTPUT}:
            tensor = with_rows(with_rows(tensor, self._vocab_size), wanted.global_shape[0])
        first = wanted.global_offset[wanted.prepend_axis_num :]
        values = tensor.rows(first[0], first[0] + wanted.local_shape[0])
        if len(wanted.local_shape) > 1:
            values = values.narrow(1, first[1], wanted.local_shape[1])
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
