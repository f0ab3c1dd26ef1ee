"""Names of weights in Megatron-LM, its forks and megatron-core, and ours for them.

2019: `transformer.layers.0.attention`; 2.x and 3.x: `encoder.layers.0.self_attention`, since 2023 `input_norm`
(ParallelTransformerLayer in megatron/legacy/model/transformer.py); megatron-core: `decoder.layers.0.self_attention.
linear_qkv`, where Transformer Engine's layers contain the norms before them: `linear_qkv.layer_norm_weight`
(megatron/core/models/gpt/gpt_layer_specs.py).
"""

from __future__ import annotations

import re

_THEIR_LAYER = re.compile(r"(?:language_model\.)?(?:transformer|encoder|decoder)\.layers\.(\d+)\.(.+)")
_FUSED_NORM = ".layer_norm_"
_MODULES = {
    "input_layernorm": ("input_norm", "self_attention.linear_qkv.layer_norm"),
    "self_attention.linear_qkv": ("self_attention.query_key_value", "attention.query_key_value"),
    "self_attention.linear_proj": ("self_attention.dense", "attention.dense"),
    "pre_mlp_layernorm": ("post_attention_layernorm", "post_attention_norm", "mlp.linear_fc1.layer_norm"),
    "mlp.linear_fc1": ("mlp.dense_h_to_4h",),
    "mlp.linear_fc2": ("mlp.dense_4h_to_h",),
}
_OURS = {theirs: ours for ours, names in _MODULES.items() for theirs in (ours, *names)}
_OUTSIDE = {
    "embedding.word_embeddings": "embedding.word_embeddings",
    "embedding.position_embeddings": "embedding.position_embeddings",
    "embedding.word_embeddings.norm": "embedding_layernorm",  # bigscience's --embed-layernorm
    "output_layer": "output_layer",
    **{
        f"{stack}.{norm}": "decoder.final_layernorm"
        for stack in ("transformer", "encoder", "decoder")
        for norm in ("final_layernorm", "final_norm")
    },
}
_OLD_QKV = "query_key_value."


def our_name(name: str, first_layer: int) -> str | None:
    """Return our name of a weight; None if no weight of ours has its place.

    Args:
        name: in Megatron-LM or a fork.
        first_layer: number of layers before those that `name` counts from 0.
    """
    if found := _THEIR_LAYER.fullmatch(name):
        inside = name_in_layer(found[2])
        return None if inside is None else f"decoder.layers.{first_layer + int(found[1])}.{inside}"
    module, _, kind = name.removeprefix("language_model.").rpartition(".")
    return f"{_OUTSIDE[module]}.{kind}" if module in _OUTSIDE and kind in {"weight", "bias"} else None


def name_in_layer(name: str) -> str | None:
    """Return our name of a layer's weight without the layer; None if it is not known."""
    module, _, kind = name.replace(_FUSED_NORM, ".layer_norm.").rpartition(".")
    return f"{_OURS[module]}.{kind}" if module in _OURS and kind in {"weight", "bias"} else None


def has_old_order(name: str) -> bool:
    """Say whether a weight is one whose order of rows depends on the checkpoint's version."""
    return _OLD_QKV in name
