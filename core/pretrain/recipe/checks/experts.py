"""Checks of a mixture of experts: the router's choice, and the layout of the experts over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.recipe.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretrain.recipe.recipe import Recipe
    from pretrain.recipe.sections.model import ModelSection


def expert_problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield what is wrong with a model's experts."""
    model = recipe.model
    if model.num_experts is None:
        return
    if not any(model.layers_with_experts):
        yield Problem("model.num_experts", f"none of the {model.num_layers} layers has experts; see moe_layer_freq.")
    yield from _router(model, model.num_experts)
    yield from _ranks(recipe, model.num_experts)
    yield from _combinations(recipe)


def _router(model: ModelSection, experts: int) -> Iterator[Problem]:
    topk, groups, best = model.moe_router_topk, model.moe_router_num_groups, model.moe_router_group_topk
    if topk > experts:
        yield Problem("model.moe_router_topk", f"{topk} is more than model.num_experts {experts}.")
    if topk == 1 and model.moe_router_score_function == "softmax" and not model.moe_router_pre_softmax:
        yield Problem(
            "model.moe_router_topk",
            "the softmax over one expert is always 1, so the router learns nothing; give model.moe_router_pre_softmax: "
            "true, or another moe_router_score_function.",
        )
    if groups is None:
        return
    if experts % groups:
        yield Problem("model.moe_router_num_groups", f"{groups} does not divide model.num_experts {experts}.")
    elif best is None:
        yield Problem("model.moe_router_group_topk", "required with model.moe_router_num_groups.")
    elif best > groups:
        yield Problem("model.moe_router_group_topk", f"{best} is more than model.moe_router_num_groups {groups}.")
    elif topk > best * (experts // groups):
        yield Problem(
            "model.moe_router_topk", f"{topk} is more than the {best * (experts // groups)} experts of {best} groups."
        )


def _ranks(recipe: Recipe, experts: int) -> Iterator[Problem]:
    model, parallel = recipe.model, recipe.parallel
    tensor, expert_tensor = parallel.tensor_model_parallel_size, parallel.expert_tensor_parallel_size
    if experts % parallel.expert_model_parallel_size:
        yield Problem(
            "parallel.expert_model_parallel_size",
            f"{parallel.expert_model_parallel_size} does not divide model.num_experts {experts}.",
        )
    if tensor % expert_tensor:
        yield Problem(
            "parallel.expert_tensor_parallel_size",
            f"{expert_tensor} does not divide tensor_model_parallel_size {tensor}.",
        )
    if model.moe_ffn_hidden_size % expert_tensor:
        yield Problem(
            "parallel.expert_tensor_parallel_size",
            f"{expert_tensor} does not divide model.moe_ffn_hidden_size {model.moe_ffn_hidden_size}.",
        )
    if (model.moe_shared_expert_intermediate_size or 0) % tensor:
        yield Problem(
            "parallel.tensor_model_parallel_size",
            f"{tensor} does not divide model.moe_shared_expert_intermediate_size "
            f"{model.moe_shared_expert_intermediate_size}.",
        )
    if tensor > 1 and not parallel.sequence_parallel:
        yield Problem(
            "parallel.sequence_parallel",
            "must be true for experts with parallel.tensor_model_parallel_size over 1: a rank routes its own tokens.",
        )


def _combinations(recipe: Recipe) -> Iterator[Problem]:
    model = recipe.model
    if model.add_bias_linear:
        yield Problem("model.add_bias_linear", "must be false with model.num_experts: experts have no biases.")
    if model.parallel_residual:
        yield Problem("model.parallel_residual", "must be false with model.num_experts; no layout test covers both.")
    if recipe.engine.name != "megatron":
        yield Problem(
            "engine.name",
            f"{recipe.engine.name} has no groups of expert-parallel ranks here; give model.num_experts engine.name: "
            "megatron.",
        )
    if recipe.precision.dtype == "fp16":
        yield Problem(
            "precision.dtype",
            "must be bf16 or fp32 with model.num_experts: megatron-core gives experts a loss scale of their own.",
        )
    if recipe.kernels.compile != "none":
        yield Problem("kernels.compile", "must be none with model.num_experts: the rows of an expert are data.")
