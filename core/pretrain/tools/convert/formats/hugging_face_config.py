"""Settings of a model in Hugging Face's config.json, as transformers 4 and 5 write it.

Names and defaults are those of configuration_gpt2.py, configuration_gpt_neox.py, configuration_llama.py,
configuration_mistral.py and configuration_qwen2.py in transformers/models; transformers 5 keeps what rope needs in
`rope_parameters` (modeling_rope_utils.py, convert_rope_params_to_dict), 4 in `rope_theta` and `rope_scaling`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES = {
    "num_layers": ("num_hidden_layers", "n_layer"),
    "hidden_size": ("hidden_size", "n_embd"),
    "num_attention_heads": ("num_attention_heads", "n_head"),
    "num_query_groups": ("num_key_value_heads",),
    "kv_channels": ("head_dim",),
    "ffn_hidden_size": ("intermediate_size", "n_inner"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions"),
    "layernorm_epsilon": ("layer_norm_epsilon", "layer_norm_eps", "rms_norm_eps"),
    "rotary_base": ("rope_theta", "rotary_emb_base"),
    "rotary_percent": ("partial_rotary_factor", "rotary_pct"),
    "parallel_residual": ("use_parallel_residual",),
    "padded_vocab_size": ("vocab_size",),
}
"""Setting of a recipe -> its names in config.json, the first that is there."""

SCALING = {
    "rope_scaling_factor": "factor",
    "rope_low_freq_factor": "low_freq_factor",
    "rope_high_freq_factor": "high_freq_factor",
    "original_max_position_embeddings": "original_max_position_embeddings",
}
"""Setting of a recipe -> its name among the parameters of rope_type llama3."""

ROPE = ("rope_scaling", "rope_parameters")
"""Names of rope's own section in transformers 4 and 5, in the order in which 5 looks for them."""

_GELUS = dict.fromkeys(("gelu", "gelu_python"), "gelu") | dict.fromkeys(
    ("gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_accurate"), "gelu_tanh"
)
_GATED = dict.fromkeys(("silu", "swish"), "swiglu")  # the MLPs of Llama and its kin multiply by a second matrix

_LLAMA = {
    "position_embedding_type": "rope",
    "normalization": "RMSNorm",
    "layernorm_epsilon": 1e-6,
    "activation": "swiglu",
    "add_bias_linear": False,
    "untie_embeddings_and_output_weights": True,
}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "position_embedding_type": "learned_absolute",
        "normalization": "LayerNorm",
        "activation": "gelu_tanh",
        "max_position_embeddings": 1024,
        "untie_embeddings_and_output_weights": False,
    },
    "gpt_neox": {
        "position_embedding_type": "rope",
        "normalization": "LayerNorm",
        "activation": "gelu",
        "max_position_embeddings": 2048,
        "rotary_percent": 0.25,
        "parallel_residual": True,
        "untie_embeddings_and_output_weights": True,
    },
    "llama": _LLAMA | {"max_position_embeddings": 2048},
    "mistral": _LLAMA | {"max_position_embeddings": 4096 * 32, "num_query_groups": 8},
    "qwen2": _LLAMA | {"max_position_embeddings": 32768, "num_query_groups": 32, "add_qkv_bias": True},
}
"""What a model_type is where config.json does not say otherwise."""

KNOWN = tuple(_DEFAULTS)
"""Values of model_type that are known."""


def settings_of_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a recipe's section `model` that config.json tells, and `padded_vocab_size`.

    Values are as they are in the file, whatever their type. Of a model_type that is not known only what has one of the
    common names is told.
    """
    kind = config.get("model_type")
    known = isinstance(kind, str) and kind in _DEFAULTS
    model = dict(_DEFAULTS[str(kind)]) if known else {}
    rope = rope_of(config)
    told: dict[str, Any] = {
        **config,
        **{name: rope[name] for name in ("rope_theta", "partial_rotary_factor") if name in rope},
    }
    for ours, names in NAMES.items():
        if values := [told[name] for name in names if name in told]:
            model.pop(ours, None)
            model.update((ours, value) for value in reversed(values) if value is not None)
    return model | _of_kind(str(kind), config, model) if known else model


def rope_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first of rope's own sections that config.json has; {} if there is none."""
    found: object = next((config[name] for name in ROPE if config.get(name)), {})
    return dict(found) if isinstance(found, dict) else {}


def rope_type(rope: Mapping[str, Any]) -> Any:
    """Return how frequencies are scaled: "default" is not at all."""
    return rope.get("rope_type", rope.get("type", "default"))


def activation_key(kind: str) -> str:
    """Return the name of the activation in config.json."""
    return "activation_function" if kind == "gpt2" else "hidden_act"


def _of_kind(kind: str, config: Mapping[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that model types have under other names, or with other values."""
    found: dict[str, Any] = {}
    if kind == "gpt2" and "ffn_hidden_size" not in model and isinstance(model.get("hidden_size"), int):
        found["ffn_hidden_size"] = 4 * model["hidden_size"]  # n_inner null
    if (activation := config.get(activation_key(kind))) is not None:
        known = _GATED if model["normalization"] == "RMSNorm" else _GELUS
        model.pop("activation", None)
        found |= {"activation": known[activation]} if isinstance(activation, str) and activation in known else {}
    if (tied := config.get("tie_word_embeddings")) is not None:
        found["untie_embeddings_and_output_weights"] = not tied if isinstance(tied, bool) else tied
    if kind == "llama" and config.get("attention_bias") is True and config.get("mlp_bias") is True:
        found["add_bias_linear"] = True
    return found | _scaling(config, model)


def _scaling(config: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    rope = rope_of(config)
    if rope_type(rope) != "llama3":
        return {}
    length = "original_max_position_embeddings"  # beside rope's own section it counts more than inside of it
    found = {length: model.get("max_position_embeddings")} | rope
    found |= {length: config[length]} if config.get(length) is not None else {}
    return {"use_rope_scaling": True} | {ours: found[name] for ours, name in SCALING.items() if name in found}
