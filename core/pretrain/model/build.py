"""Build the model chunks of one rank."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from megatron.core import parallel_state
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.attention import SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_layer import TransformerLayerSubmodules, get_transformer_layer_offset

from pretrain.model.config import transformer_config
from pretrain.model.experts import MixtureOfExperts
from pretrain.model.gpt import GPT
from pretrain.model.layer import (
    CoreAttention,
    FeedForward,
    Norm,
    ParallelLayer,
    SerialLayer,
    TrainingAttention,
)
from pretrain.model.weights import convert_fake, initialize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    import torch
    from torch import Tensor

    from pretrain.plugins.backend import PointToPoint
    from pretrain.plugins.negotiation.kernels import Kernels
    from pretrain.plugins.signatures import AttentionFn
    from pretrain.recipe import Recipe


def build(
    recipe: Recipe,
    kernels: Kernels,
    *,
    attention_of: Callable[[int], AttentionFn],
    point_to_point: PointToPoint,
    device: torch.device,
    vocab_size: int,
    planned: bool = False,
    building: Callable[[], AbstractContextManager[object]] = nullcontext,
    whole: Callable[[Tensor], AbstractContextManager[object]] = nullcontext,
) -> list[GPT]:
    """Return the model chunks of this rank in the recipe's dtype, with weights that do not depend on the layout.

    `attention_of` gives the kernel of a layer's number, from 1 over all stages. `building` is the context in which a
    chunk's modules are made (ZeRO-3 partitions them there, one by one), and `whole` the one in which a parameter is
    whole, while it is initialized. `planned`: on fake tensors, which have no values.
    """
    config = transformer_config(recipe, point_to_point)
    virtual = recipe.parallel.virtual_pipeline_model_parallel_size
    stages: list[int | None] = list(range(virtual)) if virtual else [None]
    chunks = []
    for stage in stages:
        first = get_transformer_layer_offset(config, vp_stage=stage)
        own = slice(first, first + get_num_layers_to_build(config, vp_stage=stage))
        has_experts = recipe.model.layers_with_experts[own]
        with device, building():  # `device`: moving may make new parameters, without the marks that megatron-core reads
            chunk = GPT(
                recipe,
                kernels,
                config=config,
                transformer_layer_spec=block_spec(recipe, kernels, attention_of, has_experts, planned=planned),
                vocab_size=recipe.padded_vocab_size(vocab_size),
                pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
                post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
                vp_stage=stage,
            )
        chunks.append(chunk)
        if planned:
            convert_fake(chunk, config.params_dtype)
            continue
        initialize(chunk, recipe, vocab_size, parallel_state.get_tensor_model_parallel_rank(), whole)
        chunk.to(device, config.params_dtype)
        if recipe.kernels.compile == "layer":
            from pretrain.model.compiled import compile_layers  # noqa: PLC0415  its import takes a second

            compile_layers(chunk)
    return chunks


def block_spec(
    recipe: Recipe,
    kernels: Kernels,
    attention_of: Callable[[int], AttentionFn],
    has_experts: Sequence[bool],
    *,
    planned: bool = False,
) -> TransformerBlockSubmodules:
    """Return the spec of one pipeline stage, whose layers have experts or one MLP."""
    norm = ModuleSpec(module=Norm, params={"kernel": kernels.norm})
    of_head = None
    if recipe.model.qk_layernorm:
        of_head = ModuleSpec(module=Norm, params={"kernel": kernels.norm_of("head"), "is_of_heads": True})
    linears = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
    dense = ModuleSpec(
        module=ParallelLayer if recipe.model.parallel_residual else SerialLayer,
        params={"bias_dropout_add": kernels.bias_dropout_add},
        submodules=TransformerLayerSubmodules(
            input_layernorm=norm,
            self_attention=ModuleSpec(
                module=TrainingAttention,
                params={
                    "attn_mask_type": AttnMaskType.causal,
                    "rotary": kernels.rotary if recipe.model.position_embedding_type == "rope" else None,
                },
                submodules=SelfAttentionSubmodules(
                    linear_qkv=ColumnParallelLinear,
                    core_attention=partial(CoreAttention, kernel_of=attention_of),
                    linear_proj=RowParallelLinear,
                    q_layernorm=of_head,
                    k_layernorm=of_head,
                ),
            ),
            pre_mlp_layernorm=norm,
            mlp=ModuleSpec(
                module=FeedForward,
                params={"activation": kernels.activation},
                submodules=linears,
            ),
            # Names of Transformer Engine's fused layers, so that checkpoints interchange with Megatron-LM's.
            sharded_state_dict_keys_map={
                "input_layernorm.": "self_attention.linear_qkv.layer_norm_",
                "pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_",
            },
        ),
    )
    sparse = _with_experts(dense, linears, {"recipe": recipe, "kernels": kernels, "planned": planned})
    layers = [sparse if has else dense for has in has_experts]
    return TransformerBlockSubmodules(layer_specs=layers, layer_norm=norm)


def _with_experts(dense: ModuleSpec, linears: MLPSubmodules, params: dict[str, Any]) -> ModuleSpec:
    """Return the layer with experts in place of its MLP, whose norm is then not fused into a linear (see above)."""
    mlp = ModuleSpec(module=MixtureOfExperts, params=params, submodules=linears)
    names = dense.submodules.sharded_state_dict_keys_map
    kept = {name: key for name, key in names.items() if name != "pre_mlp_layernorm."}
    return replace(dense, submodules=replace(dense.submodules, mlp=mlp, sharded_state_dict_keys_map=kept))
