"""Structure of a model: the settings that its weights depend on, and what is computed with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pretrain.recipe.sections.model import ModelSection

_STRUCTURE = (
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "kv_channels",
    "ffn_hidden_size",
    "max_position_embeddings",
    "position_embedding_type",
    "rotary_percent",
    "rotary_base",
    "use_rope_scaling",
    "rope_scaling_factor",
    "rope_low_freq_factor",
    "rope_high_freq_factor",
    "original_max_position_embeddings",
    "normalization",
    "layernorm_epsilon",
    "activation",
    "add_bias_linear",
    "add_qkv_bias",
    "untie_embeddings_and_output_weights",
    "parallel_residual",
    "embedding_layernorm",
)


def structure(model: ModelSection) -> dict[str, Any]:
    """Return these settings by the keys of a recipe's section `model`."""
    return {name: getattr(model, name) for name in _STRUCTURE}
