"""What shapes the model: activation, norms, positions, heads and the padded vocabulary."""

# Sources: core_transformer_config_from_args and validate_args in megatron/training/arguments.py, before 2024 in
# megatron/arguments.py; megatron/model/transformer.py of the versions before megatron-core.

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.setting import Derived, in_place, taken, unused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.setting import Function, Settings

FLASH = ("use_flash_attn", "use_flash_attn_v1", "use_flash_attn_v2", "use_flash_attn_triton", "use_flash_attn_builder")
"""Flags of which one switches flash attention on."""

_FUSED_SOFTMAX = ("masked_softmax_fusion", "scaled_masked_softmax_fusion")
"""Of v2.5 and later, and of v2.0; versions before have no such kernel."""

_NORMS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
_POSITIONS = dict.fromkeys(("learned_absolute", "absolute"), "learned_absolute") | dict.fromkeys(
    ("rope", "rotary", "yarn"), "rope"
)
_FIRST = ("position_embedding_type", "use_rotary_position_embeddings", "add_position_embedding")


def activation(settings: Settings) -> Derived:
    """Return the activation: swiglu, or gelu as the tanh approximation that the fused kernel computes, or exact."""
    if is_of_yaml(settings):
        return _of_activation_func(settings)
    return _gated(settings) or _approximation(settings) or _gelu(settings)


def _gated(settings: Settings) -> Derived | None:
    if settings.value("swiglu"):
        return Derived("swiglu", ("swiglu",))
    gated = settings.value("glu_activation")
    if not gated:
        return None
    lost = () if gated == "swiglu" else (("glu_activation", f"{gated} is not supported; swiglu is used instead"),)
    return Derived("swiglu", ("glu_activation",), lost=lost)


def _approximation(settings: Settings) -> Derived | None:
    """Return gelu's approximation where a flag or Transformer Engine computes it."""
    approximate = settings.first_on("use_te_activation_func", "openai_gelu")
    if approximate == "use_te_activation_func":
        return Derived("gelu_tanh", (approximate,))
    if approximate and _is_legacy(settings):
        return Derived("gelu_tanh", (approximate, *_stated_model(settings)))
    if settings.value("transformer_impl") == "transformer_engine" and _is_legacy(settings):
        names = ("transformer_impl", *_stated_model(settings))
        return Derived("gelu_tanh", names, "Transformer Engine's gelu is the approximation")
    return None


def _gelu(settings: Settings) -> Derived:
    is_exported = settings.value("onnx_safe") and "swiglu" in settings.program.flags  # looked at first since swiglu
    if settings.value("bias_gelu_fusion") and settings.value("add_bias_linear", True) and not is_exported:
        return Derived("gelu_tanh", ("bias_gelu_fusion",), "computed by the fused bias and GELU")
    idle = (("openai_gelu", "megatron-core's model does not read it"),)
    return Derived("gelu", ("onnx_safe",) if is_exported else ("bias_gelu_fusion",), idle=idle)


def is_of_yaml(settings: Settings) -> bool:
    """Say whether settings are those of a --yaml-cfg file: activation_func is no flag, and stands in every one."""
    return "activation_func" in settings.stated


def _of_activation_func(settings: Settings) -> Derived:
    """Return the activation of core_transformer_config_from_yaml, which looks at no flag and fuses no bias of gelu."""
    name = "activation_func"
    given = settings.value(name)
    why = "activation_func of the file says the activation"
    idle = tuple((flag, why) for flag in ("swiglu", "squared_relu", "openai_gelu", "bias_gelu_fusion", "onnx_safe"))
    if given == "squaredrelu":
        return Derived("gelu", (), lost=((name, "squared ReLU is not supported; gelu is used instead"),), idle=idle)
    return Derived("swiglu" if given == "swiglu" else "gelu", (name,), idle=idle)


def _stated_model(settings: Settings) -> tuple[str, ...]:
    """Return the flags that say whether the model is megatron-core's, if they are stated."""
    return tuple(name for name in ("use_legacy_models", "use_mcore_models") if name in settings.stated)


def _is_legacy(settings: Settings) -> bool:
    """Say whether the model is not megatron-core's, which a flag chose for some years, and then the other."""
    if "deprecated_use_mcore_models" in settings.program.flags:
        return bool(settings.value("use_legacy_models"))
    return not settings.value("use_mcore_models")


def ffn_hidden_size(settings: Settings) -> Derived | None:
    """Return the width of the MLP where it is stated; bigscience's gated MLPs have 4 h too, ours less by default."""
    stated, width = taken(settings, "ffn_hidden_size"), settings.value("hidden_size")
    if stated is None and settings.value("glu_activation") and width is not None:
        return Derived(4 * width, ("glu_activation",), "4 x hidden_size, its default")
    return stated


def _normalization(settings: Settings) -> Derived | None:
    given = settings.value("normalization")
    if given is None:
        return None
    kind = _NORMS.get(str(given).lower())
    if kind is None:
        return in_place(None, "normalization", f"{given} is not supported; LayerNorm is used instead")
    return Derived(kind, ("normalization",))


def position_embedding_type(settings: Settings) -> Derived:
    """Return how positions enter: rope if either of two flags says so."""
    given = str(settings.value("position_embedding_type", "learned_absolute"))
    given = given.rpartition(".")[2]  # a log has PositionEmbeddingType.absolute
    if settings.value("use_rotary_position_embeddings"):
        both = settings.value("add_position_embedding") and "position_embedding_type" not in settings.program.flags
        lost = (("use_rotary_position_embeddings", "learned positions, which are added too, are left out"),)
        return Derived("rope", _FIRST, lost=lost if both else ())
    if given not in _POSITIONS:
        change = f"{given} is not supported; learned positions are used instead"
        return in_place("learned_absolute", "position_embedding_type", change)
    if settings.value("add_position_embedding") is False and _POSITIONS[given] != "rope":
        change = "a model without positions is not supported; learned positions are used instead"
        return in_place("learned_absolute", "add_position_embedding", change)
    return Derived(_POSITIONS[given], ("position_embedding_type",))


def is_yarn(settings: Settings) -> bool:
    """Say whether positions are YaRN's, which the older flag of rope puts aside."""
    return settings.value("position_embedding_type") == "yarn" and not settings.value("use_rotary_position_embeddings")


def num_query_groups(settings: Settings) -> Derived | None:
    """Return the number of key/value heads; today's Megatron-LM reads it only with --group-query-attention."""
    given = settings.value("num_query_groups")
    if "group_query_attention" not in settings.program.flags:
        own = settings.value("num_key_value_heads", given)
        return None if own is None else Derived(own, ("num_query_groups", "num_key_value_heads"))
    if is_of_yaml(settings):
        return taken(settings, "num_query_groups")
    if settings.value("group_query_attention"):
        return Derived(given, ("num_query_groups", "group_query_attention"))
    return unused("num_query_groups", "it is read only with --group-query-attention")


def _window_size(settings: Settings) -> Derived | None:
    """Return how many keys a token sees; the flag says how many before its own, -1 for all, and how many after it."""
    given = settings.value("window_size")
    if given is None:
        return None
    before, _, after = str(given).strip("()[]").replace(" ", "").partition(",")
    if after != "0" or not before.removeprefix("-").isdecimal() or int(before) < -1:
        return in_place(None, "window_size", f"a window of {given} is not supported; a token sees all earlier ones")
    return Derived(int(before) + 1 or None, ("window_size",), "1 more: a token sees itself, too")


def apply_query_key_layer_scaling(settings: Settings) -> Derived | None:
    """Return whether scores are scaled by the layer's number; flash attention has no such scaling."""
    name = "apply_query_key_layer_scaling"
    flash = tuple(flash for flash in FLASH if settings.value(flash))
    if settings.value(name) and flash:
        why = "flash attention has no such scaling"
        return Derived(False, flash, why, idle=((name, why),))
    return taken(settings, name)


def attention_softmax_in_fp32(settings: Settings) -> Derived | None:
    """Return whether the softmax is in fp32: also that of every fused kernel, which computes inside in fp32."""
    names = ("attention_softmax_in_fp32", "apply_query_key_layer_scaling")
    if any(settings.value(name) for name in names):
        return Derived(True, names)
    fused = tuple(name for name in _FUSED_SOFTMAX if name in settings.program.flags)
    if any(settings.value(name) for name in fused):
        return Derived(True, fused, "the fused softmax computes in fp32")
    return Derived(False, (*names, *fused))


def make_vocab_size_divisible_by(settings: Settings) -> Derived | None:
    """Return the multiple to which the vocabulary is padded; bigscience's --pad-vocab-size-to is the padded size."""
    name = settings.first_on("pad_vocab_size_to", "padded_vocab_size")
    padded = settings.value(name)
    ranks = settings.value("tensor_model_parallel_size", 1)
    if padded and ranks > 0 and padded % ranks == 0:
        return Derived(padded // ranks, (name,), f"to {padded}, over {ranks} ranks")
    return Derived(settings.value("make_vocab_size_divisible_by"), ("make_vocab_size_divisible_by",))


FUNCTIONS: Mapping[str, Function] = {
    "model.activation": activation,
    "model.ffn_hidden_size": ffn_hidden_size,
    "model.normalization": _normalization,
    "model.position_embedding_type": position_embedding_type,
    "model.num_query_groups": num_query_groups,
    "model.window_size": _window_size,
    "model.apply_query_key_layer_scaling": apply_query_key_layer_scaling,
    "model.attention_softmax_in_fp32": attention_softmax_in_fp32,
    "model.make_vocab_size_divisible_by": make_vocab_size_divisible_by,
}
