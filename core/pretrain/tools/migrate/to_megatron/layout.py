"""Flags of the training's length, the layout over the ranks, precision, recomputation, checkpoints and evaluation."""

# Sources: validate_args in megatron/training/arguments.py; PipelineParallelLayerLayout in
# megatron/core/transformer/pipeline_parallel_layer_layout.py.

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.recipe.sections.train import ranges
from pretrain.tools.migrate.to_megatron.flags import NOTHING, Answer, given, when

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.recipe import Recipe
    from pretrain.tools.migrate.to_megatron.flags import Function

_UNSPLIT = {2: "gradients", 3: "weights and gradients"}
_MOST_WRITTEN = 3000
"""Iterations that are written one by one."""

_ANY_INTERVAL = 1000
"""An interval that is never reached: without one the number of validation samples cannot be worked out."""


def grad_reduce_in_fp32(recipe: Recipe) -> Answer:
    """Return whether gradients are summed in fp32, where that is not so by itself: with bf16 it is, with fp16 not."""
    kind, in_fp32 = recipe.precision.dtype, recipe.precision.grad_reduce_in_fp32
    if kind == "fp16":
        return when(in_fp32, "accumulate_allreduce_grads_in_fp32")
    return when(kind == "bf16" and not in_fp32, "grad_reduce_in_bf16")


def pipeline_layers(recipe: Recipe) -> Answer:
    """Return the layers of every chunk, each a t, between the embedding and the loss."""
    layers = recipe.parallel.pipeline_layers
    layout = "E" + "|".join("t" * number for number in layers or ()) + "L"
    return when(layers is not None, "pipeline_model_parallel_layout", layout)


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
    return when(splits, "use_distributed_optimizer")


def _ddp_bucket_size(recipe: Recipe) -> Answer:
    zero, own = recipe.engine.zero.reduce_bucket_size, recipe.parallel.ddp_bucket_size
    size = zero if _is_deepspeed(recipe) else own
    return NOTHING if size is None or not _overlaps(recipe) else Answer((given("ddp_bucket_size", size),))


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


def iterations_to_skip(recipe: Recipe) -> Answer:
    """Return the iterations that are left out, which Megatron-LM counts from 0, one by one; too many are no command."""
    found = ranges(recipe.train.iterations_to_skip)
    count = sum(last - first + 1 for first, last in found)
    if count > _MOST_WRITTEN:
        return Answer(change=f"Megatron-LM takes them one by one, and {count} numbers are too many for a command")
    return when(count, "iterations_to_skip", *(at - 1 for first, last in found for at in range(first, last + 1)))


def train_iters(recipe: Recipe) -> Answer:
    """Return the length in iterations; without one the schedule cannot be made, unless nothing is trained."""
    iters = recipe.train.train_iters
    if iters is None:
        return NOTHING
    length = given("train_iters", iters)
    return Answer((length,)) if iters else Answer((length, given("skip_train")))


def save(recipe: Recipe) -> Answer:
    """Return the folder of checkpoints; there is no run directory, but the working directory."""
    folder = recipe.checkpoint.save
    if folder is False:
        return NOTHING
    change = "" if recipe.train.train_iters != 0 else "after --skip-train nothing is saved"
    return Answer((given("save", "checkpoints" if folder is True else folder),), change)


def save_interval(recipe: Recipe) -> Answer:
    """Return the interval, which --save needs; for 0 one that ends with the training, where it saves anyway."""
    length = recipe.train.train_iters or recipe.train.train_samples or _ANY_INTERVAL
    interval = recipe.checkpoint.save_interval or length
    return when(recipe.checkpoint.save is not False, "save_interval", interval)


def profile_steps(recipe: Recipe) -> Answer:
    """Return the profile's end, which Megatron-LM counts from 0."""
    profile = recipe.profile
    if not profile.steps:
        return NOTHING
    return Answer((given("profile"), given("profile_step_end", profile.start - 1 + profile.steps)))


def evaluation_interval(recipe: Recipe) -> Answer:
    """Return the interval, which has no default there; evaluations are off without iterations of one."""
    interval = recipe.evaluation.interval
    if interval:
        return Answer((given("eval_interval", interval),))
    return Answer((given("eval_interval", _ANY_INTERVAL), given("eval_iters", 0)))


def loggers(recipe: Recipe) -> Answer:
    """Return TensorBoard's folder, and what Megatron-LM does not log to; a project has a flag of its own.

    It logs to W&B only where it writes for TensorBoard too (training_log of megatron/training/training.py).
    """
    section = recipe.logging
    missing = [name for name in section.loggers if name not in {"tensorboard", "wandb"}]
    if "wandb" in section.loggers and section.wandb_project is None:
        missing.insert(0, "wandb without logging.wandb_project")
    change = f"nothing is logged to {', '.join(missing)}" if missing else ""
    writes = not {"tensorboard", "wandb"}.isdisjoint(section.loggers)
    return Answer(when(writes, "tensorboard_dir", "tensorboard").flags, change)


def wandb_exp_name(recipe: Recipe) -> Answer:
    """Return the name of the run, which a project needs there; there is no run directory that could give it."""
    section = recipe.logging
    has_project = "wandb" in section.loggers and section.wandb_project is not None
    return when(has_project, "wandb_exp_name", section.wandb_exp_name or section.wandb_project)


def _virtual_pipeline_model_parallel_size(recipe: Recipe) -> Answer:
    chunks, layers = recipe.parallel.virtual_pipeline_model_parallel_size, recipe.parallel.pipeline_layers
    return when(chunks is not None and layers is None, "num_virtual_stages_per_pipeline_rank", chunks)


def _of_layers(recipe: Recipe, name: str, value: str | int) -> Answer:
    """Return a flag of whole recomputed layers, which has no default there."""
    return when(recipe.recompute.granularity == "full", name, value)


FUNCTIONS: Mapping[str, Function] = {
    "train.rampup_batch_size": lambda recipe: when(
        recipe.train.rampup_batch_size, "rampup_batch_size", *recipe.train.rampup_batch_size or ()
    ),
    "train.iterations_to_skip": iterations_to_skip,
    "train.train_iters": train_iters,
    "train.manual_gc": lambda recipe: when(recipe.train.manual_gc, "manual_gc"),
    "precision.dtype": lambda recipe: when(recipe.precision.dtype != "fp32", recipe.precision.dtype),
    "precision.grad_reduce_in_fp32": grad_reduce_in_fp32,
    "parallel.virtual_pipeline_model_parallel_size": _virtual_pipeline_model_parallel_size,
    "parallel.pipeline_layers": pipeline_layers,
    "parallel.overlap_p2p_comm": overlap_p2p_comm,
    "parallel.use_distributed_optimizer": use_distributed_optimizer,
    "parallel.overlap_grad_reduce": lambda recipe: when(_overlaps(recipe), "overlap_grad_reduce"),
    "parallel.ddp_bucket_size": _ddp_bucket_size,
    "recompute.granularity": lambda recipe: when(
        recipe.recompute.granularity != "none", "recompute_granularity", recipe.recompute.granularity
    ),
    "recompute.method": lambda recipe: _of_layers(recipe, "recompute_method", recipe.recompute.method),
    "recompute.num_layers": lambda recipe: _of_layers(recipe, "recompute_num_layers", recipe.recompute.num_layers),
    "engine.name": engine_name,
    "engine.zero.stage": zero_stage,
    "engine.zero.overlap_comm": lambda _: NOTHING,  # overlap_grad_reduce has the flag
    "engine.zero.reduce_bucket_size": reduce_bucket_size,
    "checkpoint.save": save,
    "checkpoint.save_interval": save_interval,
    "checkpoint.async_save": lambda recipe: Answer(
        (given("async_save"), given("use_persistent_ckpt_worker")) if recipe.checkpoint.async_save else ()
    ),
    "evaluation.interval": evaluation_interval,
    "profile.start": lambda recipe: when(recipe.profile.steps, "profile_step_start", recipe.profile.start - 1),
    "profile.steps": profile_steps,
    "profile.ranks": lambda recipe: when(recipe.profile.steps, "profile_ranks", *recipe.profile.ranks),
    "profile.use_pytorch_profiler": lambda recipe: when(
        recipe.profile.steps and recipe.profile.use_pytorch_profiler, "use_pytorch_profiler"
    ),
    "profile.memory": lambda recipe: when(recipe.profile.steps and recipe.profile.memory, "record_memory_history"),
    "logging.loggers": loggers,
    "logging.wandb_exp_name": wandb_exp_name,
    "logging.log_timers": lambda recipe: when(recipe.logging.log_timers, "timing_log_level", 1),
}
