"""Make megatron-core's TransformerConfig from a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from megatron.core.transformer import TransformerConfig
from torch.nn import functional

from pretrain.model.requests import compute_dtype

if TYPE_CHECKING:
    from pretrain.plugins.backend import PointToPoint
    from pretrain.recipe import Recipe
    from pretrain.recipe.sections.parallel import ParallelSection

ACTIVATIONS = {"gelu": functional.gelu, "gelu_tanh": functional.gelu, "swiglu": functional.silu}


def transformer_config(recipe: Recipe, point_to_point: PointToPoint) -> TransformerConfig:
    """Return the configuration; megatron-core's own fusions stay off: every fused operation is a negotiated kernel."""
    return TransformerConfig(**_model(recipe), **_parallel(recipe, point_to_point), **_recompute(recipe))


def _model(recipe: Recipe) -> dict[str, Any]:
    model = recipe.model
    return {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "num_query_groups": model.num_query_groups,
        "kv_channels": model.head_size,
        "ffn_hidden_size": model.ffn_hidden_size,
        "hidden_dropout": model.hidden_dropout,
        "attention_dropout": model.attention_dropout,
        "normalization": model.normalization,
        "layernorm_epsilon": model.layernorm_epsilon,
        "add_bias_linear": model.add_bias_linear,
        "add_qkv_bias": model.add_qkv_bias,
        "qk_layernorm": model.qk_layernorm,
        "activation_func": ACTIVATIONS[model.activation],
        "gated_linear_unit": model.activation == "swiglu",
        "apply_query_key_layer_scaling": model.apply_query_key_layer_scaling,
        "attention_softmax_in_fp32": model.attention_softmax_in_fp32 or model.apply_query_key_layer_scaling,
        # Weights are set by pretrain.model.weights. With perform_initialization: False they would not be marked as
        # tensor-parallel (tensor_parallel/layers.py, _initialize_affine_weight_gpu), so the methods do nothing instead.
        "init_method": _unchanged,
        "output_layer_init_method": _unchanged,
        "embedding_init_method": _unchanged,
        "transformer_impl": "local",
        "masked_softmax_fusion": False,
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
        "apply_rope_fusion": False,
        "gradient_accumulation_fusion": False,
        "persist_layer_norm": False,
        "deterministic_mode": recipe.train.deterministic_mode,
        **_experts(recipe),
    }


def _experts(recipe: Recipe) -> dict[str, Any]:
    """Return what megatron-core's layers, schedules and checkpoints look at; its own experts are not used."""
    model, parallel = recipe.model, recipe.parallel
    if model.num_experts is None:
        return {}
    has_experts = model.layers_with_experts
    return {
        "num_moe_experts": model.num_experts,
        "moe_ffn_hidden_size": model.moe_ffn_hidden_size,
        "moe_router_dtype": "fp32",  # the router's own; without it a warning about many experts
        "moe_layer_freq": 1 if all(has_experts) else list(map(int, has_experts)),
        "expert_model_parallel_size": parallel.expert_model_parallel_size,
        "expert_tensor_parallel_size": parallel.expert_tensor_parallel_size,
    }


def _parallel(recipe: Recipe, point_to_point: PointToPoint) -> dict[str, Any]:
    parallel, dtype = recipe.parallel, compute_dtype(recipe)
    overlaps = _overlaps(parallel, point_to_point)
    return {
        "tensor_model_parallel_size": parallel.tensor_model_parallel_size,
        "pipeline_model_parallel_size": parallel.pipeline_model_parallel_size,
        "virtual_pipeline_model_parallel_size": parallel.virtual_pipeline_model_parallel_size,
        "context_parallel_size": parallel.context_parallel_size,
        "sequence_parallel": parallel.sequence_parallel,
        "calculate_per_token_loss": recipe.train.calculate_per_token_loss,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "fp16": dtype == torch.float16,
        "bf16": dtype == torch.bfloat16,
        "pipeline_model_parallel_layout": _stages(recipe),
        "overlap_p2p_comm": overlaps,
        "batch_p2p_comm": point_to_point.batched and not overlaps and not _has_one_peer(parallel),
        "batch_p2p_sync": False,
        "deallocate_pipeline_outputs": point_to_point.stream_ordered or not overlaps,
    }


def _overlaps(parallel: ParallelSection, point_to_point: PointToPoint) -> bool:
    """Return whether stages compute while they send and receive; only the interleaved schedule supports that."""
    if parallel.virtual_pipeline_model_parallel_size is None:
        return False
    requested = parallel.overlap_p2p_comm
    return point_to_point.overlapped if requested is None else requested


def _stages(recipe: Recipe) -> list[list[str]] | None:
    """Return the layers of each chunk, in order; None if all chunks have equally many."""
    chunks = recipe.layers_of_chunks
    if len(set(chunks)) == 1:
        return None
    layout = [["decoder"] * layers for layers in chunks]
    layout[0].insert(0, "embedding")
    layout[-1].append("loss")
    return layout


def _has_one_peer(parallel: ParallelSection) -> bool:
    """Return whether one batch holds two messages to one peer: the interleaved schedule with two stages.

    Only their order distinguishes the messages, and both ends begin with the backward one (p2p_communication.py,
    _batched_p2p_ops): each takes the other's gradients for activations. Megatron-LM's arguments.py rejects this.
    """
    return parallel.pipeline_model_parallel_size == 2 and parallel.virtual_pipeline_model_parallel_size is not None


def _recompute(recipe: Recipe) -> dict[str, Any]:
    recompute = recipe.recompute
    if recompute.granularity == "none":
        return {}
    if recompute.granularity == "selective":
        return {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}
    return {
        "recompute_granularity": "full",
        "recompute_method": recompute.method,
        "recompute_num_layers": recompute.num_layers,
        "distribute_saved_activations": recompute.distribute_saved_activations,
    }


def _unchanged(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
