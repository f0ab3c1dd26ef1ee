"""Least memory of a rank, by formulas: what the launcher asks before every run, in no time and without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.engine.optimizers.choice import state_bytes
from pretrain.report.flops import parameter_count

if TYPE_CHECKING:
    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout


def least_memory(recipe: Recipe, layout: Layout) -> int:
    """Return bytes that the fullest rank needs on its device in any case: weights, gradients, optimizer's state.

    A bound from below. Left out are the vocabulary's rows, whose number needs a tokenizer, activations, buffers of
    communication and the allocator's reserve. Bytes per parameter are those of the ZeRO paper (arXiv:1910.02054,
    section 3.1) for the dtypes in which this project's engines keep them; see docs/zero.md.

    Args:
        recipe: what is trained.
        layout: of its ranks.
    """
    return int(_parameters(recipe, layout) * _bytes_per_parameter(recipe, layout.data_parallel_size))


def _parameters(recipe: Recipe, layout: Layout) -> float:
    """Return the parameters of the rank with most layers, as if tensor parallelism divided all of them."""
    stages = layout.pipeline_model_parallel_size
    layers = max(sum(layout.layers_of_chunks[stage::stages]) for stage in range(stages))
    count = _count(recipe, layers)
    if stages > 1:
        count -= _count(recipe, 0)  # the first and the last stage alone have the rest
    return count / layout.tensor_model_parallel_size


def _count(recipe: Recipe, layers: int) -> int:
    return parameter_count(recipe.model.model_copy(update={"num_layers": layers}), 0)


def _bytes_per_parameter(recipe: Recipe, replicas: int) -> float:
    weight = 4.0 if recipe.precision.dtype == "fp32" else 2.0
    state = float(state_bytes(recipe.optimizer))
    main_weight = 0.0 if recipe.precision.dtype == "fp32" else 4.0
    if recipe.engine.name == "deepspeed":
        return _of_zero(recipe, replicas, weight, state + main_weight)
    gradient = 4.0 if recipe.precision.grad_reduce_in_fp32 else weight
    share = replicas if recipe.parallel.use_distributed_optimizer else 1
    # MixedPrecisionOptimizer makes fp32 gradients for the update; with the distributed optimizer fp32 ones serve.
    is_fp32 = recipe.precision.dtype == "fp32" or recipe.precision.grad_reduce_in_fp32
    copies = 0.0 if is_fp32 else 4.0
    return weight + gradient + (state + main_weight + copies) / share


def _of_zero(recipe: Recipe, replicas: int, weight: float, state: float) -> float:
    """Return the sum of what ZeRO leaves on the device; from stage 1 on a rank may keep its part of gradients only."""
    zero = recipe.engine.zero
    gradient = weight
    if zero.stage >= 1:
        state, gradient = state / replicas, gradient / replicas
    if zero.stage == 3:
        weight = weight / replicas
    if zero.offload_optimizer.device != "none":
        state = gradient = 0.0  # gradients are copied to the host as they are reduced
    if zero.offload_param.device != "none":
        weight = 0.0
    return weight + gradient + state
