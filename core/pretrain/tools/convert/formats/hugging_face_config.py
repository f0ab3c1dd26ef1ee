"""Settings of a model in Hugging Face's config.json, as transformers 4 and 5 write it.

Names and defaults are those of models/MODEL_TYPE/configuration_MODEL_TYPE.py in transformers. A window has as many keys
as ours, the token's own among them: key > query - sliding_window (sliding_window_overlay in masking_utils.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.errors import CheckpointError
from pretrain.recipe.section import shown
from pretrain.tools.convert.formats.hugging_face_rope import BASE, PART, refused_rope, rope_of, scaling_of, written_rope

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import torch

    from pretrain.recipe.sections.model import ModelSection
    from pretrain.tools.convert.formats.hugging_face_families import Architecture

# setting of a recipe -> its names in config.json, the first that is there; of sizes the second is GPT-2's
NAMES = {
    "num_layers": ("num_hidden_layers", "n_layer"),
    "hidden_size": ("hidden_size", "n_embd"),
    "num_attention_heads": ("num_attention_heads", "n_head"),
    "num_query_groups": ("num_key_value_heads",),
    "kv_channels": ("head_dim",),
    "ffn_hidden_size": ("intermediate_size", "n_inner"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions"),
    "layernorm_epsilon": ("layer_norm_epsilon", "layer_norm_eps", "rms_norm_eps"),
    "rotary_base": BASE,
    "rotary_percent": PART,
    "parallel_residual": ("use_parallel_residual",),
    "padded_vocab_size": ("vocab_size",),
    "num_experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "moe_ffn_hidden_size": ("moe_intermediate_size",),
    "moe_router_topk": ("num_experts_per_tok",),
    "first_k_dense_replace": ("first_k_dense_replace",),
    "moe_router_num_groups": ("n_group",),
    "moe_router_group_topk": ("topk_group",),
    "moe_router_topk_scaling_factor": ("routed_scaling_factor",),
}
_SIZES = ("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "max_position_embeddings")
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
_SIGMOIDS = _LLAMA | {"moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True}
# What a model_type is where config.json does not say otherwise
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
    "qwen3": _LLAMA
    | {"max_position_embeddings": 32768, "num_query_groups": 32, "kv_channels": 128, "qk_layernorm": True},
    "stablelm": _LLAMA
    | {"max_position_embeddings": 4096, "num_query_groups": 32, "rotary_percent": 0.25}
    | {"normalization": "LayerNorm", "layernorm_epsilon": 1e-5},
    "mixtral": _LLAMA
    | {"max_position_embeddings": 4096 * 32, "num_query_groups": 8, "layernorm_epsilon": 1e-5, "rotary_base": 1e6}
    | {"num_experts": 8, "moe_router_topk": 2},
    "qwen3_moe": _LLAMA
    | {"max_position_embeddings": 32768, "num_query_groups": 4, "qk_layernorm": True}
    | {"num_experts": 128, "moe_ffn_hidden_size": 768, "moe_router_topk": 8},
    "glm4_moe": _SIGMOIDS
    | {"max_position_embeddings": 131072, "num_query_groups": 8, "layernorm_epsilon": 1e-5, "rotary_percent": 0.5}
    | {"num_experts": 128, "moe_ffn_hidden_size": 1408, "moe_router_topk": 8, "first_k_dense_replace": 1},
    "dots1": _SIGMOIDS
    | {"max_position_embeddings": 2048, "num_query_groups": 32, "qk_layernorm": True, "moe_ffn_hidden_size": 1408},
}
_NOT_BUILT = dict.fromkeys(
    ("deepseek_v2", "deepseek_v3", "kimi_k2"),
    "whose attention has keys and values of a low rank (multi-head latent attention), which is not built here",
)


def settings_of_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that config.json tells, of whatever type; of an unknown model_type those of common names."""
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


def _activation_key(kind: str) -> str:
    return "activation_function" if kind == "gpt2" else "hidden_act"


def _of_kind(kind: str, config: Mapping[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that model types have under other names, or with other values."""
    found: dict[str, Any] = {}
    if kind == "gpt2" and "ffn_hidden_size" not in model and isinstance(model.get("hidden_size"), int):
        found["ffn_hidden_size"] = 4 * model["hidden_size"]  # n_inner null
    if (activation := config.get(_activation_key(kind))) is not None:
        known = _GATED if model["activation"] == "swiglu" else _GELUS
        model.pop("activation", None)
        found |= {"activation": known[activation]} if isinstance(activation, str) and activation in known else {}
    if (tied := config.get("tie_word_embeddings")) is not None:
        found["untie_embeddings_and_output_weights"] = not tied if isinstance(tied, bool) else tied
    if kind == "llama" and config.get("attention_bias") is True and config.get("mlp_bias") is True:
        found["add_bias_linear"] = True
    if kind == "stablelm":
        found["add_qkv_bias"] = config.get("use_qkv_bias", False)
    if kind in {"mistral", "mixtral"}:
        found["window_size"] = config.get("sliding_window", 4096 if kind == "mistral" else None)
    if kind == "qwen3_moe":
        found["moe_router_pre_softmax"] = config.get("norm_topk_prob") is not True
    if kind in _OF_SIGMOID:
        found |= _of_sigmoid(kind, config, model)
    return found | scaling_of(config, model)


def _of_sigmoid(kind: str, config: Mapping[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    if config.get("n_group", 1) == 1:
        for name in ("moe_router_num_groups", "moe_router_group_topk"):
            model.pop(name, None)
    found = {name: config[theirs] for name, theirs in _OF_SIGMOID[kind].items() if theirs in config}
    shared, each = config.get("n_shared_experts", None if kind == "dots1" else 1), model.get("moe_ffn_hidden_size")
    return found | ({"moe_shared_expert_intermediate_size": shared * each} if _are_ints(shared, each) else {})


# by model_type with a router of sigmoids: its switches
_OF_SIGMOID = {"glm4_moe": {"qk_layernorm": "use_qk_norm", "add_qkv_bias": "attention_bias"}, "dots1": {}}
# by model_type: settings that must have this value, which is transformers' default
_ONLY: dict[str, dict[str, Any]] = {
    "gpt2": {
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "add_cross_attention": False,
    },
    "gpt_neox": {"attention_bias": True},
    "qwen3": {"attention_bias": False},
    "stablelm": {"qk_layernorm": False},
    "qwen3_moe": {"attention_bias": False, "decoder_sparse_step": 1, "use_sliding_window": False},
    "dots1": {"attention_bias": False},
}
_KEY = "(model."  # before the setting of ours that replaces what is refused


def require_known(path: Path, config: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Require that our settings can express all that a config.json says of what the model computes."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in _DEFAULTS:
        why = _NOT_BUILT.get(kind, "which is not supported") if isinstance(kind, str) else "which is not supported"
        msg = f"{path} has model_type {shown(kind)}, {why}.\nSupported are: {', '.join(_DEFAULTS)}."
        raise CheckpointError(msg)
    if wrong := [*_refused_of_kind(kind, config, given), *refused_rope(config, given), *_windows(kind, config, given)]:
        to_do = "Recipes have no such setting: it cannot be converted."
        if all(_KEY in each for each in wrong):
            to_do = "If a setting does not matter to you, replace it by --set model.KEY=VALUE."
        msg = f"{path} has unsupported settings: {'; '.join(wrong)}.\n{to_do}"
        raise CheckpointError(msg)


def _refused_of_kind(kind: str, config: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[str]:
    if "activation" not in settings_of_config(config) and "activation" not in given:
        key = _activation_key(kind)
        yield f"{key} {shown(config[key])} (model.activation)"
    for name, value in _ONLY.get(kind, {}).items():
        if type(given_value := config.get(name, value)) is not type(value) or given_value != value:
            yield f"{name} {shown(config[name])}"
    biases = [config.get(name) or False for name in ("attention_bias", "mlp_bias")]
    if kind == "llama" and biases not in ([False] * 2, [True] * 2) and "add_bias_linear" not in given:
        yield f"attention_bias {shown(biases[0])} with mlp_bias {shown(biases[1])} (model.add_bias_linear)"
    if kind == "qwen3_moe" and config.get("mlp_only_layers"):
        yield f"mlp_only_layers {shown(config['mlp_only_layers'])}"
    topk, norm = settings_of_config(config).get("moe_router_topk"), config.get("norm_topk_prob", kind != "dots1")
    if kind in _OF_SIGMOID and (type(topk) is not int or norm is not (topk != 1)):  # ours divides by the sum of several
        yield f"norm_topk_prob {shown(norm)} with num_experts_per_tok {shown(topk)}"
    if config.get("quantization_config"):
        yield "quantization_config (weights that are quantized)"


def _windows(kind: str, config: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[str]:
    window = _window(kind, config)
    length = given.get("max_position_embeddings", settings_of_config(config).get("max_position_embeddings"))
    if window is not None and not (_are_ints(window, length) and window >= length):
        yield f"sliding_window {shown(window)} below {shown(length)} positions (model.max_position_embeddings)"


def _window(kind: str, config: Mapping[str, Any]) -> Any:
    """Return how many positions only some layers see; None is all.

    The window of all layers, as Mistral has, is a setting of ours. That of dots.llm1, and of Qwen 2 and 3 with
    use_sliding_window, holds from layer max_window_layers on. Layers of other kinds, in a list, see an unknown number.
    """
    layers = config.get("layer_types")
    first, number = config.get("max_window_layers", 62 if kind == "dots1" else 28), config.get("num_hidden_layers")
    if isinstance(layers, list) and any(each != "full_attention" for each in layers):
        return config.get("sliding_window") or "of its own"
    is_used = kind == "dots1" or (kind in {"qwen2", "qwen3"} and config.get("use_sliding_window"))
    is_used = is_used and not isinstance(layers, list) and not (_are_ints(first, number) and first >= number)
    return config.get("sliding_window", 4096) if is_used else None


def _are_ints(*values: object) -> bool:
    return all(type(value) is int for value in values)


# as the published models of a kind call them; gelu_new and gelu_fast are one formula
_ACTIVATIONS = {
    "gpt2": {"gelu": "gelu", "gelu_tanh": "gelu_new"},
    "gpt_neox": {"gelu": "gelu", "gelu_tanh": "gelu_fast"},
}


def config_of(
    kind: str,
    family: Architecture,
    model: ModelSection,
    vocab_size: int,
    dtype: torch.dtype,
    ids: Mapping[str, int | list[int] | None],
) -> dict[str, Any]:
    """Return what config.json holds; ids are null where unknown, since transformers' defaults are other tokens."""
    return {
        "architectures": [family.architecture],
        "model_type": kind,
        "vocab_size": vocab_size,
        **(_gpt2(model) if kind == "gpt2" else _with_rope(kind, model)),
        _activation_key(kind): _ACTIVATIONS.get(kind, {}).get(model.activation, "silu"),
        "initializer_range": model.init_method_std,
        "tie_word_embeddings": not model.untie_embeddings_and_output_weights,
        "dtype": str(dtype).removeprefix("torch."),
        **ids,
    }


def _gpt2(model: ModelSection) -> dict[str, Any]:
    return {NAMES[name][1]: getattr(model, name) for name in _SIZES} | {
        "layer_norm_epsilon": model.layernorm_epsilon,
        "resid_pdrop": model.hidden_dropout,
        "embd_pdrop": model.hidden_dropout,
        "attn_pdrop": model.attention_dropout,
    }


def _with_rope(kind: str, model: ModelSection) -> dict[str, Any]:
    common = {NAMES[name][0]: getattr(model, name) for name in _SIZES} | {"attention_dropout": model.attention_dropout}
    if kind == "gpt_neox":
        return common | {
            "layer_norm_eps": model.layernorm_epsilon,
            "hidden_dropout": model.hidden_dropout,
            "use_parallel_residual": model.parallel_residual,
            "attention_bias": True,
            "rotary_pct": model.rotary_percent,
            "rotary_emb_base": model.rotary_base,
            **written_rope(model, {"partial_rotary_factor": model.rotary_percent}),
        }
    of_rope = {"partial_rotary_factor": model.rotary_percent} if kind in {"stablelm", "glm4_moe"} else {}
    return common | {
        "num_key_value_heads": model.num_query_groups,
        "head_dim": model.kv_channels,
        ("layer_norm_eps" if kind == "stablelm" else "rms_norm_eps"): model.layernorm_epsilon,
        "rope_theta": model.rotary_base,
        **_of_llamas_kin(kind, model),
        **_written_experts(kind, model),
        **written_rope(model, of_rope),
        **of_rope,
    }


def _of_llamas_kin(kind: str, model: ModelSection) -> dict[str, Any]:
    """Return what dense model types have, and windows."""
    match kind:
        case "llama":
            return {"attention_bias": model.add_bias_linear, "mlp_bias": model.add_bias_linear}
        case "mistral" | "mixtral" | "dots1":
            return {"sliding_window": model.window_size}
        case "stablelm":
            return {"use_qkv_bias": model.add_qkv_bias}
        case _:
            return {}


def _written_experts(kind: str, model: ModelSection) -> dict[str, Any]:
    chosen = {"num_experts_per_tok": model.moe_router_topk}
    match kind:
        case "mixtral":
            return chosen | {"num_local_experts": model.num_experts}
        case "qwen3_moe":
            return chosen | {
                "num_experts": model.num_experts,
                "moe_intermediate_size": model.moe_ffn_hidden_size,
                "norm_topk_prob": not model.moe_router_pre_softmax,
                "decoder_sparse_step": 1,
                "mlp_only_layers": [],
                "attention_bias": False,
            }
        case "glm4_moe" | "dots1":
            return chosen | {
                "n_routed_experts": model.num_experts,
                "moe_intermediate_size": model.moe_ffn_hidden_size,
                "n_shared_experts": (model.moe_shared_expert_intermediate_size or 0) // model.moe_ffn_hidden_size,
                "first_k_dense_replace": model.first_k_dense_replace,
                "n_group": model.moe_router_num_groups or 1,
                "topk_group": model.moe_router_group_topk or 1,
                "routed_scaling_factor": model.moe_router_topk_scaling_factor,
                "norm_topk_prob": model.moe_router_topk > 1,
                **({"num_nextn_predict_layers": 0} if kind == "glm4_moe" else {}),
                **{theirs: getattr(model, ours) for ours, theirs in _OF_SIGMOID[kind].items()},
            }
        case _:
            return {}
