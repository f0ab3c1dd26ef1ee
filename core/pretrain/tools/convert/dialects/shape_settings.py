"""Settings of a model that its weights tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.tools.convert.formats.megatron_weights import model_of, number_of_layers

if TYPE_CHECKING:
    from collections.abc import Mapping


def settings_of_shapes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return the settings of the section `model` that whole shapes by our names tell.

    Without position embeddings, `position_embedding_type` is not told: rope has no weights.
    """
    settings = model_of(shapes, number_of_layers(shapes))
    qkv_has_bias = any(name.endswith(".linear_qkv.bias") for name in shapes)
    return settings | {
        "add_qkv_bias": qkv_has_bias and not settings.get("add_bias_linear", False),
        "normalization": "LayerNorm" if "decoder.final_layernorm.bias" in shapes else "RMSNorm",
        "embedding_layernorm": "embedding_layernorm.weight" in shapes,
    }
