"""config.json of a model, for transformers 4 and 5."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.tools.convert.formats.hugging_face_config import NAMES, SCALING, activation_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from pretrain.recipe.sections.model import ModelSection
    from pretrain.tools.convert.dialects.hugging_face.families import Family

_ACTIVATIONS = {
    "gpt2": {"gelu": "gelu", "gelu_tanh": "gelu_new"},
    "gpt_neox": {"gelu": "gelu", "gelu_tanh": "gelu_fast"},
}
"""As the published models of a kind call them; gelu_new and gelu_fast are one formula."""


def config_of(
    kind: str,
    family: Family,
    model: ModelSection,
    vocab_size: int,
    dtype: torch.dtype,
    ids: Mapping[str, int | list[int] | None],
) -> dict[str, Any]:
    """Return what config.json holds.

    Args:
        kind: the model_type.
        family: its architecture.
        model: the model.
        vocab_size: rows of the embedding.
        dtype: of the weights.
        ids: `bos_token_id`, `eos_token_id` and others; null where unknown, since
            transformers' defaults are other tokens.
    """
    return {
        "architectures": [family.architecture],
        "model_type": kind,
        "vocab_size": vocab_size,
        **(_gpt2(model) if kind == "gpt2" else _with_rope(kind, model)),
        activation_key(kind): _ACTIVATIONS.get(kind, {}).get(model.activation, "silu"),
        "initializer_range": model.init_method_std,
        "tie_word_embeddings": not model.untie_embeddings_and_output_weights,
        "dtype": str(dtype).removeprefix("torch."),
        **ids,
    }


def _gpt2(model: ModelSection) -> dict[str, Any]:
    return {
        "n_positions": model.max_position_embeddings,
        "n_embd": model.hidden_size,
        "n_layer": model.num_layers,
        "n_head": model.num_attention_heads,
        "n_inner": model.ffn_hidden_size,
        "layer_norm_epsilon": model.layernorm_epsilon,
        "resid_pdrop": model.hidden_dropout,
        "embd_pdrop": model.hidden_dropout,
        "attn_pdrop": model.attention_dropout,
    }


def _with_rope(kind: str, model: ModelSection) -> dict[str, Any]:
    sizes = ("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "max_position_embeddings")
    common = {NAMES[name][0]: getattr(model, name) for name in sizes} | {"attention_dropout": model.attention_dropout}
    if kind == "gpt_neox":
        return common | {
            "layer_norm_eps": model.layernorm_epsilon,
            "hidden_dropout": model.hidden_dropout,
            "use_parallel_residual": model.parallel_residual,
            "attention_bias": True,
            "rotary_pct": model.rotary_percent,
            "rotary_emb_base": model.rotary_base,
            **_written_rope(model, {"partial_rotary_factor": model.rotary_percent}),
        }
    biases = {"attention_bias": model.add_bias_linear, "mlp_bias": model.add_bias_linear} if kind == "llama" else {}
    return common | {
        "num_key_value_heads": model.num_query_groups,
        "head_dim": model.kv_channels,
        "rms_norm_eps": model.layernorm_epsilon,
        "rope_theta": model.rotary_base,
        **biases,
        **_written_rope(model, {}),
    }


def _written_rope(model: ModelSection, more: dict[str, Any]) -> dict[str, Any]:
    """Return rope's settings as transformers 5 reads them, and its scaling also as 4 does."""
    scaling: dict[str, Any] = {"rope_type": "default"}
    if model.use_rope_scaling:
        scaling = {"rope_type": "llama3"} | {theirs: getattr(model, ours) for ours, theirs in SCALING.items()}
    old = {"rope_scaling": scaling} if model.use_rope_scaling else {}
    return {"rope_parameters": {**scaling, "rope_theta": model.rotary_base, **more}, **old}
