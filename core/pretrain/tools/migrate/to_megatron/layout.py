"""Flags of the layout over the ranks, of precision and recomputation, and of who steps the optimizer.

validate_args (megatron/training/arguments.py); PipelineParallelLayerLayout
(megatron/core/transformer/pipeline_parallel_layer_layout.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.recipe.sections.train import ranges
from pretrain.tools.migrate.to_megatron.flags import NOTHING, Answer, given

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.recipe import Recipe
    from pretrain.tools.migrate.to_megatron.flags import Function


_UNSPLIT = {2: "gradients", 3: "weights and gradients"}


def dtype(recipe: Recipe) -> Answer:
    """Return the dtype's switch; fp32 is without one."""
    kind = recipe.precision.dtype
    return NOTHING if kind == "fp32" else Answer((given(kind),))


def grad_reduce_in_fp32(recipe: Recipe) -> Answer:
    """Return whether gradients are summed in fp32, where that is not so by itself: with bf16 it is, with fp16 not."""
    kind, in_fp32 = recipe.precision.dtype, recipe.precision.grad_reduce_in_fp32
    if kind == "fp16" and in_fp32:
        return Answer((given("accumulate_allreduce_grads_in_fp32"),))
    return Answer((given("grad_reduce_in_bf16"),)) if kind == "bf16" and not in_fp32 else NOTHING


def virtual_pipeline_model_parallel_size(recipe: Recipe) -> Answer:
    """Return the chunks of a stage, unless the list of layers says them."""
    chunks = recipe.parallel.virtual_pipeline_model_parallel_size
    if chunks is None or recipe.parallel.pipeline_layers is not None:
        return NOTHING
    return Answer((given("num_virtual_stages_per_pipeline_rank", chunks),))


def pipeline_layers(recipe: Recipe) -> Answer:
    """Return the layers of every chunk, each a t, between the embedding and the loss."""
    layers = recipe.parallel.pipeline_layers
    if layers is None:
        return NOTHING
    layout = "E" + "|".join("t" * number for number in layers) + "L"
    return Answer((given("pipeline_model_parallel_layout", layout),))


def overlap_p2p_comm(recipe: Recipe) -> Answer:
    """Return the switch against overlap, which the interleaved schedule of two stages needs there."""
    if recipe.parallel.overlap_p2p_comm is not False or recipe.parallel.virtual_pipeline_model_parallel_size is None:
        return NOTHING
    if recipe.parallel.pipeline_model_parallel_size == 2:
        return Answer(change="the interleaved schedule of two stages always overlaps its messages there")
    return Answer((given("overlap_p2p_comm", False),))


def use_distributed_optimizer(recipe: Recipe) -> Answer:
    """Return whether the optimizer's state is split, as every stage of ZeRO but 0 does."""
    splits = recipe.engine.zero.stage if _is_deepspeed(recipe) else recipe.parallel.use_distributed_optimizer
    return Answer((given("use_distributed_optimizer"),)) if splits else NOTHING


def overlap_grad_reduce(recipe: Recipe) -> Answer:
    """Return whether gradients are reduced during the backward pass."""
    return Answer((given("overlap_grad_reduce"),)) if _overlaps(recipe) else NOTHING


def ddp_bucket_size(recipe: Recipe) -> Answer:
    """Return the gradients that are reduced together."""
    zero, own = recipe.engine.zero.reduce_bucket_size, recipe.parallel.ddp_bucket_size
    size = zero if _is_deepspeed(recipe) else own
    return NOTHING if size is None or not _overlaps(recipe) else Answer((given("ddp_bucket_size", size),))


def granularity(recipe: Recipe) -> Answer:
    """Return what is computed again."""
    kind = recipe.recompute.granularity
    return NOTHING if kind == "none" else Answer((given("recompute_granularity", kind),))


def method(recipe: Recipe) -> Answer:
    """Return which layers keep their input; there is no default there."""
    return _of_layers(recipe, "recompute_method", recipe.recompute.method)


def num_layers(recipe: Recipe) -> Answer:
    """Return the layers of a group, or those that are computed again; there is no default there."""
    return _of_layers(recipe, "recompute_num_layers", recipe.recompute.num_layers)


def engine_name(recipe: Recipe) -> Answer:
    """Return nothing but who steps the optimizer instead of DeepSpeed."""
    if not _is_deepspeed(recipe):
        return NOTHING
    stage = recipe.engine.zero.stage
    kind = "--use-distributed-optimizer is what ZeRO-1 is" if stage else "nothing is split, as at ZeRO's stage 0"
    return Answer(change=f"Megatron-LM steps the optimizer itself: {kind}")


def zero_stage(recipe: Recipe) -> Answer:
    """Return what the stage splits beyond the optimizer's state."""
    if not _is_deepspeed(recipe) or recipe.engine.zero.stage not in _UNSPLIT:
        return NOTHING
    whole = _UNSPLIT[recipe.engine.zero.stage]
    return Answer(change=f"only the optimizer's state is split: {whole} stay whole on every rank and take more memory")


def overlap_comm(_recipe: Recipe) -> Answer:
    """Return nothing: overlap_grad_reduce has the flag."""
    return NOTHING


def reduce_bucket_size(recipe: Recipe) -> Answer:
    """Return nothing but that it is lost where ddp_bucket_size has no flag of it."""
    zero = recipe.engine.zero
    if not _is_deepspeed(recipe) or _overlaps(recipe) or "reduce_bucket_size" not in zero.model_fields_set:
        return NOTHING
    return Answer(change="without overlap all gradients are reduced at once: memory can differ, the results do not")


def _is_deepspeed(recipe: Recipe) -> bool:
    return recipe.engine.name == "deepspeed"


def _overlaps(recipe: Recipe) -> bool:
    """Say whether gradients are reduced during the backward pass, as ZeRO does by default at stage 3."""
    if _is_deepspeed(recipe):
        zero = recipe.engine.zero
        return zero.stage == 3 if zero.overlap_comm is None else zero.overlap_comm
    return recipe.parallel.overlap_grad_reduce


def _of_layers(recipe: Recipe, name: str, value: str | int) -> Answer:
    return Answer((given(name, value),)) if recipe.recompute.granularity == "full" else NOTHING


FUNCTIONS: Mapping[str, Function] = {
    "precision.dtype": dtype,
    "precision.grad_reduce_in_fp32": grad_reduce_in_fp32,
    "parallel.virtual_pipeline_model_parallel_size": virtual_pipeline_model_parallel_size,
    "parallel.pipeline_layers": pipeline_layers,
    "parallel.overlap_p2p_comm": overlap_p2p_comm,
    "parallel.use_distributed_optimizer": use_distributed_optimizer,
    "parallel.overlap_grad_reduce": overlap_grad_reduce,
    "parallel.ddp_bucket_size": ddp_bucket_size,
    "recompute.granularity": granularity,
    "recompute.method": method,
    "recompute.num_layers": num_layers,
    "engine.name": engine_name,
    "engine.zero.stage": zero_stage,
    "engine.zero.overlap_comm": overlap_comm,
    "engine.zero.reduce_bucket_size": reduce_bucket_size,
}
"""By key."""


_FOLDER = "checkpoints"
_TENSORBOARD = "tensorboard"
_MOST_WRITTEN = 3000
"""Iterations that are written one by one."""
_ANY_INTERVAL = 1000
"""An interval that is never reached: without one the number of validation samples cannot be worked out."""


def rampup_batch_size(recipe: Recipe) -> Answer:
    """Return start, increment and samples."""
    numbers = recipe.train.rampup_batch_size
    return NOTHING if numbers is None else Answer((given("rampup_batch_size", *numbers),))


def iterations_to_skip(recipe: Recipe) -> Answer:
    """Return the iterations that are left out, which Megatron-LM counts from 0, one by one; too many are no command."""
    found = ranges(recipe.train.iterations_to_skip)
    count = sum(last - first + 1 for first, last in found)
    if count > _MOST_WRITTEN:
        return Answer(change=f"Megatron-LM needs them one by one, and {count} numbers are too long for a command")
    numbers = [number - 1 for first, last in found for number in range(first, last + 1)]
    return Answer((given("iterations_to_skip", *numbers),)) if numbers else NOTHING


def train_iters(recipe: Recipe) -> Answer:
    """Return the length in iterations; without one the schedule cannot be made, unless nothing is trained."""
    iters = recipe.train.train_iters
    if iters is None:
        return NOTHING
    length = given("train_iters", iters)
    return Answer((length,)) if iters else Answer((length, given("skip_train")))


def manual_gc(recipe: Recipe) -> Answer:
    """Return the switch of the collector."""
    return Answer((given("manual_gc"),)) if recipe.train.manual_gc else NOTHING


def save(recipe: Recipe) -> Answer:
    """Return the folder of checkpoints; there is no run directory, but the working directory."""
    folder = recipe.checkpoint.save
    if folder is False:
        return NOTHING
    change = "" if recipe.train.train_iters != 0 else "after --skip-train nothing is saved"
    return Answer((given("save", _FOLDER if folder is True else folder),), change)


def save_interval(recipe: Recipe) -> Answer:
    """Return the interval, which --save needs; for 0 one that ends with the training, where it saves anyway."""
    if recipe.checkpoint.save is False:
        return NOTHING
    length = recipe.train.train_iters or recipe.train.train_samples or _ANY_INTERVAL
    return Answer((given("save_interval", recipe.checkpoint.save_interval or length),))


def async_save(recipe: Recipe) -> Answer:
    """Return the switch, with the one without which it is switched off."""
    if not recipe.checkpoint.async_save:
        return NOTHING
    return Answer((given("async_save"), given("use_persistent_ckpt_worker")))


def evaluation_interval(recipe: Recipe) -> Answer:
    """Return the interval, which has no default there; evaluations are off without iterations of one."""
    interval = recipe.evaluation.interval
    if interval:
        return Answer((given("eval_interval", interval),))
    return Answer((given("eval_interval", _ANY_INTERVAL), given("eval_iters", 0)))


def tensorboard(recipe: Recipe) -> Answer:
    """Return the folder of TensorBoard's files, which switches them on."""
    return Answer((given("tensorboard_dir", _TENSORBOARD),)) if recipe.logging.tensorboard else NOTHING


def log_timers(recipe: Recipe) -> Answer:
    """Return the level at which the phases of an iteration are timed."""
    return Answer((given("timing_log_level", 1),)) if recipe.logging.log_timers else NOTHING


LENGTH_FUNCTIONS: Mapping[str, Function] = {
    "train.rampup_batch_size": rampup_batch_size,
    "train.iterations_to_skip": iterations_to_skip,
    "train.train_iters": train_iters,
    "train.manual_gc": manual_gc,
    "checkpoint.save": save,
    "checkpoint.save_interval": save_interval,
    "checkpoint.async_save": async_save,
    "evaluation.interval": evaluation_interval,
    "logging.tensorboard": tensorboard,
    "logging.log_timers": log_timers,
}
"""By key."""
