"""Building the model chunks of one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megatron.core import parallel_state
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_block import get_num_layers_to_build

from pretrain.model.config import transformer_config
from pretrain.model.gpt import GPT
from pretrain.model.spec import block_spec
from pretrain.model.weights import initialize

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from megatron.core.transformer import TransformerConfig
    from torch import nn

    from pretrain.plugins.backend import PointToPoint
    from pretrain.plugins.kernels import Kernels
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
) -> list[nn.Module]:
    """Return the model chunks of this rank, with weights that do not depend on the layout.

    Args:
        recipe: what is trained.
        kernels: the negotiated kernels.
        attention_of: the attention kernel of a layer, by its number from 1 over all stages.
        point_to_point: what the backend's communication between stages can do.
        device: where the parameters go.
        vocab_size: entries of the tokenizer, before padding.

    Returns:
        One chunk, or as many as `virtual_pipeline_model_parallel_size`; wrapped in Float16Module for 16 bits.
    """
    config = transformer_config(recipe, point_to_point)
    virtual = recipe.parallel.virtual_pipeline_model_parallel_size
    stages: list[int | None] = list(range(virtual)) if virtual else [None]
    chunks: list[nn.Module] = []
    for stage in stages:
        with device:  # moving parameters later may make new ones, without the marks that megatron-core reads
            chunk = GPT(
                recipe,
                kernels,
                config=config,
                transformer_layer_spec=block_spec(
                    recipe, kernels, attention_of, get_num_layers_to_build(config, vp_stage=stage)
                ),
                vocab_size=recipe.model.padded_vocab_size(vocab_size, recipe.parallel.tensor_model_parallel_size),
                pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
                post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
                vp_stage=stage,
            )
        initialize(chunk, recipe, vocab_size, parallel_state.get_tensor_model_parallel_rank())
        chunks.append(_on(chunk.to(device), config))
    return chunks


def _on(chunk: GPT, config: TransformerConfig) -> nn.Module:
    return Float16Module(config, chunk) if config.fp16 or config.bf16 else chunk
