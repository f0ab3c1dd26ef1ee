"""Module spec of a layer: the classes that megatron-core builds, and their kernels."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_layer import TransformerLayerSubmodules

from pretrain.model.attention import Attention, CoreAttention, SelfAttentionSubmodules
from pretrain.model.layer import ParallelLayer, SerialLayer
from pretrain.model.mlp import FeedForward
from pretrain.model.norm import Norm

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.plugins.negotiation.kernels import Kernels
    from pretrain.plugins.signatures import AttentionFn
    from pretrain.recipe import Recipe


def block_spec(
    recipe: Recipe, kernels: Kernels, attention_of: Callable[[int], AttentionFn], num_layers: int
) -> TransformerBlockSubmodules:
    """Return the spec of one pipeline stage.

    Args:
        recipe: with the model to train.
        kernels: the negotiated kernels.
        attention_of: returns the attention kernel of a layer, by its number from 1.
        num_layers: layers of this stage.
    """
    norm = ModuleSpec(module=Norm, params={"kernel": kernels.norm})
    layer = ModuleSpec(
        module=ParallelLayer if recipe.model.parallel_residual else SerialLayer,
        params={"bias_dropout_add": kernels.bias_dropout_add},
        submodules=TransformerLayerSubmodules(
            input_layernorm=norm,
            self_attention=ModuleSpec(
                module=Attention,
                params={
                    "attn_mask_type": AttnMaskType.causal,
                    "rotary": kernels.rotary if recipe.model.position_embedding_type == "rope" else None,
                },
                submodules=SelfAttentionSubmodules(
                    linear_qkv=ColumnParallelLinear,
                    core_attention=partial(CoreAttention, kernel_of=attention_of),
                    linear_proj=RowParallelLinear,
                ),
            ),
            pre_mlp_layernorm=norm,
            mlp=ModuleSpec(
                module=FeedForward,
                params={"activation": kernels.activation},
                submodules=MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear),
            ),
            # Names of Transformer Engine's fused layers, so that checkpoints interchange with Megatron-LM's.
            sharded_state_dict_keys_map={
                "input_layernorm.": "self_attention.linear_qkv.layer_norm_",
                "pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_",
            },
        ),
    )
    return TransformerBlockSubmodules(layer_specs=[layer] * num_layers, layer_norm=norm)
