"""Settings that DeepSpeed 0.19.8 refuses in the middle of a build, or replaces without an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from pretrain.recipe.checks.training import indivisible_by_tensor_size
from pretrain.recipe.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretrain.recipe.recipe import Recipe

_MEBIBYTE = 1 << 20
"""Weights from this size in bytes are kept in files (`MIN_SWAPPABLE_BYTES` of runtime/swap_tensor/utils.py)."""


def deepspeed_problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield what the DeepSpeed engine cannot do."""
    if recipe.engine.name != "deepspeed":
        return
    if recipe.parallel.pipeline_model_parallel_size > 1:
        yield _pipeline(recipe)
    yield from _optimizer(recipe)
    yield from _gradients(recipe)
    yield from _offload(recipe)
    if recipe.engine.zero.stage == 3:
        yield from _files(recipe)


def _pipeline(recipe: Recipe) -> Problem:
    path, stages = "parallel.pipeline_model_parallel_size", recipe.parallel.pipeline_model_parallel_size
    stage = recipe.engine.zero.stage
    if stage < 2:
        return Problem(
            path,
            f"{stages} needs engine.name: megatron, where parallel.use_distributed_optimizer: true does "
            "what engine.zero.stage: 1 does here.",
        )
    split = "gradients" if stage == 2 else "weights and gradients"
    return Problem(
        path,
        f"{stages} conflicts with engine.zero.stage: {stage}, which splits the {split} of a pipeline stage while its "
        f"other micro-batches still add to them. {_without_pipeline(recipe)}",
    )


def _without_pipeline(recipe: Recipe) -> str:
    """Return the layout of one stage for which the same number of ranks will do."""
    ranks = recipe.model_parallel_size
    size = max(n for n in range(1, ranks + 1) if not ranks % n and not indivisible_by_tensor_size(recipe, n))
    nearest = f"Nearest: pipeline_model_parallel_size: 1 with tensor_model_parallel_size: {size}"
    if size == ranks:
        return f"{nearest}."
    key = indivisible_by_tensor_size(recipe, ranks)[0]
    return f"{nearest}; {ranks} does not divide model.{key} {getattr(recipe.model, key)}."


def _optimizer(recipe: Recipe) -> Iterator[Problem]:
    """Yield a problem for an optimizer that this engine does not have."""
    match name := recipe.optimizer.own:
        case "adam" | "adamw":
            yield from ()
        case "muon":
            yield Problem(
                "optimizer.name",
                "muon needs engine.name: megatron: DeepSpeed's ranks and groups do not keep its matrices whole.",
            )
        case None:
            yield Problem(
                "optimizer.name", f"{recipe.optimizer.name} needs engine.name: megatron, as all that are installed."
            )
        case _:
            assert_never(name)


def _gradients(recipe: Recipe) -> Iterator[Problem]:
    """Yield problems of stage 0: DeepSpeedEngine's _do_optimizer_sanity_check, and backward, which scales with ZeRO."""
    precision = recipe.precision
    if recipe.engine.zero.stage == 0 and precision.dtype == "fp16":
        yield Problem(
            "engine.zero.stage",
            "0 conflicts with precision.dtype: fp16: DeepSpeed scales the loss only with ZeRO. Give 1 to 3, or "
            "engine.name: megatron, which splits nothing either.",
        )
        return
    if recipe.engine.zero.stage == 0 and precision.dtype != "fp32" and precision.grad_reduce_in_fp32:
        default = " (the default)" if "grad_reduce_in_fp32" not in precision.model_fields_set else ""
        yield Problem(
            "precision.grad_reduce_in_fp32",
            f"true{default} needs engine.zero.stage 1 to 3 with {precision.dtype}; at stage 0 DeepSpeed sums gradients "
            f"in {precision.dtype}. Give false, or a stage.",
        )


def _offload(recipe: Recipe) -> Iterator[Problem]:
    zero, section = recipe.engine.zero, recipe.optimizer
    if zero.stage == 0:
        return
    for key in ("exp_avg_dtype", "exp_avg_sq_dtype"):
        if (dtype := getattr(section, key)) != "fp32" and zero.offload_optimizer.device != "none":
            yield Problem(
                f"optimizer.{key}",
                f"{dtype} conflicts with engine.zero.offload_optimizer: the Adams of the host keep fp32. Give fp32.",
            )
    if zero.offload_optimizer.device == "nvme" and zero.stage < 3:  # DeepSpeedEngine.zero_use_cpu_optimizer
        yield Problem(
            "engine.zero.offload_optimizer.device",
            f"nvme needs engine.zero.stage: 3; at stage {zero.stage} DeepSpeed would keep everything in host memory, "
            "as with cpu.",
        )
    for name in ("offload_optimizer", "offload_param"):
        section = getattr(zero, name)
        if section.device == "nvme" and section.nvme_path is None and zero.stage == 3:
            yield Problem(f"engine.zero.{name}.nvme_path", f"required with engine.zero.{name}.device: nvme.")
    if not zero.contiguous_gradients and zero.offload_optimizer.device != "none" and zero.stage < 3:
        yield Problem(  # DeepSpeedZeroOptimizer.__init__
            "engine.zero.contiguous_gradients",
            f"false conflicts with engine.zero.offload_optimizer at stage {zero.stage}, where DeepSpeed uses true.",
        )


def _files(recipe: Recipe) -> Iterator[Problem]:
    """Yield problems of files: buffers that run out at the first or second step, and weights that would be mixed up."""
    zero = recipe.engine.zero
    optimizer, param = zero.offload_optimizer, zero.offload_param
    if optimizer.device == "nvme":
        ahead = [key for key in ("pipeline_read", "pipeline_write") if getattr(optimizer, key)]
        needed = 4 * (1 + len(ahead))  # PipelinedOptimizerSwapper._swap_in_optimizer_state
        if optimizer.buffer_count < needed:
            more = f", and as many again for {' and for '.join(ahead)}" if ahead else ""
            yield Problem(
                "engine.zero.offload_optimizer.buffer_count",
                f"{optimizer.buffer_count} is too few: a sub-group needs one each for main weights, gradients and "
                f"Adam's two moments{more}. Give at least {needed}.",
            )
    if param.device == "nvme":
        if not param.buffer_count:
            yield Problem(
                "engine.zero.offload_param.buffer_count", "0 is too few: every weight is read through a buffer."
            )
        smallest = _MEBIBYTE // (4 if recipe.precision.dtype == "fp32" else 2)
        if zero.stage3_param_persistence_threshold >= smallest:
            # Seen on one CPU rank: it kept using their buffers after other weights had been read into them.
            yield Problem(
                "engine.zero.stage3_param_persistence_threshold",
                f"{zero.stage3_param_persistence_threshold} conflicts with engine.zero.offload_param.device: nvme, "
                f"which keeps weights of {smallest} elements (1 MiB) or more in files: DeepSpeed runs out of buffers "
                f"for those that stay whole, or mixes them up. Give less than {smallest}.",
            )
