"""megatron-core's data parallelism and optimizer, as a recipe asks for them."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_standard_config_overrides
from megatron.core.optimizer.optimizer_config import ParamKey, ParamWithNamePredicate
from megatron.core.transformer.module import Float16Module

from pretrain.bridge.megatron.optimizer import KIND
from pretrain.model.requests import DTYPES, compute_dtype
from pretrain.model.weights import IS_EMBEDDING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from megatron.core.optimizer import MegatronOptimizer
    from megatron.core.optimizer_param_scheduler import ParamGroupOverride
    from torch import Tensor

    from pretrain.engine.optimizers.optimizer import Optimizer
    from pretrain.model.gpt import GPT
    from pretrain.recipe import Recipe
    from pretrain.recipe.sections.optimizer import OptimizerSection


EMBEDDINGS = ParamKey(attr=IS_EMBEDDING)
"""Key of megatron-core's overrides for weights with `optimizer.decoupled_lr`."""
_WRAPPERS = re.compile(r"^(module\.)+")  # before the name of a weight in the model


def distribute(recipe: Recipe, chunks: Sequence[GPT]) -> list[DistributedDataParallel]:
    """Wrap every chunk in megatron-core's data parallelism: gradients in one buffer, reduced in buckets."""
    config = data_parallel_config(recipe)
    # Bucketed as in Megatron-LM: the reduction of later chunks is hidden behind the first one's backward anyway.
    return [
        DistributedDataParallel(chunk.config, config, in_compute_dtype(recipe, chunk), disable_bucketing=number > 0)
        for number, chunk in enumerate(chunks)
    ]


def data_parallel_config(recipe: Recipe) -> DistributedDataParallelConfig:
    """Return megatron-core's configuration of the gradients' reduction."""
    parallel = recipe.parallel
    return DistributedDataParallelConfig(
        grad_reduce_in_fp32=recipe.precision.grad_reduce_in_fp32,
        overlap_grad_reduce=parallel.overlap_grad_reduce,
        overlap_param_gather=parallel.overlap_param_gather,
        bucket_size=parallel.ddp_bucket_size,
        use_distributed_optimizer=parallel.use_distributed_optimizer,
        # The bridge keeps what it looks at; by itself it would wait for the device. fp16 recovers by itself.
        check_for_nan_in_grad=recipe.precision.dtype != "fp16",
    )


def in_compute_dtype(recipe: Recipe, chunk: GPT) -> Any:
    """Wrap a chunk so that its first stage takes and its last stage returns fp32, if the recipe's dtype is another."""
    return Float16Module(chunk.config, chunk) if compute_dtype(recipe) != torch.float32 else chunk


def optimizer_config(recipe: Recipe, optimizer: Optimizer) -> OptimizerConfig:
    """Return megatron-core's configuration of the optimizer."""
    section, precision, dtype = recipe.optimizer, recipe.precision, compute_dtype(recipe)
    config = OptimizerConfig(
        **optimizer.megatron_config(section),
        lr=section.lr,
        min_lr=recipe.schedule.min_lr,
        decoupled_lr=section.decoupled_lr,
        decoupled_min_lr=recipe.schedule.decoupled_min_lr,
        weight_decay=section.weight_decay,
        clip_grad=section.clip_grad,
        fp16=dtype == torch.float16,
        bf16=dtype == torch.bfloat16,
        params_dtype=dtype,
        loss_scale=precision.loss_scale,
        initial_loss_scale=precision.initial_loss_scale,
        min_loss_scale=precision.min_loss_scale,
        loss_scale_window=precision.loss_scale_window,
        hysteresis=precision.hysteresis,
        use_distributed_optimizer=recipe.parallel.use_distributed_optimizer,
        overlap_param_gather=recipe.parallel.overlap_param_gather,
        log_num_zeros_in_grad=recipe.logging.log_num_zeros_in_grad,
    )
    # Not as arguments: it would ask for Transformer Engine's Adam. The distributed optimizer allocates by them to load.
    config.exp_avg_dtype, config.exp_avg_sq_dtype = DTYPES[section.exp_avg_dtype], DTYPES[section.exp_avg_sq_dtype]
    return config


def group_overrides(
    optimizer: Optimizer, config: OptimizerConfig, chunks: Sequence[DistributedDataParallel]
) -> dict[ParamKey, ParamGroupOverride]:
    """Return megatron-core's parameter groups: its own, cut by the optimizer's kinds of weights.

    Those with another learning rate are marked: when it loads a state, it would take groups that only the rate tells
    apart for one (param_group_identifier_keys).
    """

    def kind(weight: Tensor, name: str) -> str:
        return optimizer.kind_of(_WRAPPERS.sub("", name), weight)

    kinds = {kind(weight, name) for chunk in chunks for name, weight in chunk.named_parameters()}
    of_kind = {
        ParamKey(with_name_predicate=ParamWithNamePredicate(each, partial(_is_kind, kind, each))): {KIND: each}
        for each in sorted(kinds - {""})
    }
    standard: dict[ParamKey, ParamGroupOverride] = get_standard_config_overrides(config)
    if EMBEDDINGS in standard:
        standard[EMBEDDINGS] = {**standard[EMBEDDINGS], "is_decoupled_lr": True}
    return standard | of_kind


def _is_kind(kind: Callable[[Tensor, str], str], wanted: str, weight: Tensor, name: str) -> bool:
    return kind(weight, name) == wanted


def prepare_states(optimizer: Optimizer, section: OptimizerSection, built: MegatronOptimizer) -> None:
    """Tell every parameter group its kind, and megatron-core the states of that, where it allocates them by itself."""

    def allocate(adam: Any, _config: OptimizerConfig | None = None) -> None:
        for group in adam.param_groups:
            for weight in group["params"]:
                if not adam.state[weight]:
                    adam.state[weight] = optimizer.new_state(section, weight, group[KIND])

    for part in built.chained_optimizers:
        for group in part.param_groups:
            group.setdefault(KIND, "")
        part.init_state_fn = allocate


def connect(
    config: Any,
    recipe: Recipe,
    chunks: list[DistributedDataParallel],
    optimizer: MegatronOptimizer,
    finalize: Callable[..., None],
) -> None:
    """Tell the schedules of megatron-core how to scale losses, when to reduce gradients, and what finishes that."""
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize
    if recipe.parallel.overlap_grad_reduce:
        no_sync = [chunk.no_sync for chunk in chunks]
        config.no_sync_func = no_sync if len(chunks) > 1 else no_sync[0]
    if recipe.parallel.overlap_param_gather and len(chunks) > 1:
        config.param_sync_func = [chunk.start_param_sync for chunk in chunks]


def disconnect(config: Any) -> None:
    """Undo `connect`: through `config`, chunks would keep the optimizer, and with it groups and their threads, forever.

    The distributed optimizer's shards of fp32 parameters hold autograd nodes, whose hooks hold the chunks; the garbage
    collector does not see cycles through such nodes.
    """
    config.grad_scale_func = config.finalize_model_grads_func = config.no_sync_func = config.param_sync_func = None
