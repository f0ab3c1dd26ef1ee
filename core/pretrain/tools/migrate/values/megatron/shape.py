"""Keys of the section `model` that several flags make together.

core_transformer_config_from_args and validate_args (megatron/training/arguments.py, before 2024 megatron/arguments.py);
the MLPs of megatron/model/transformer.py for the activation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.values.worked import Worked

if TYPE_CHECKING:
    from pretrain.tools.migrate.setting import Settings

FLASH = (
    "use_flash_attn",
    "use_flash_attn_v1",
    "use_flash_attn_v2",
    "use_flash_attn_triton",
    "use_flash_attn_builder",
)
"""Flags of which one switches flash attention on."""

_APPROXIMATE = ("use_te_activation_func", "openai_gelu")
_FUSED_SOFTMAX = ("masked_softmax_fusion", "scaled_masked_softmax_fusion")
"""Of v2.5 and later, and of v2.0; versions before have no such kernel."""

_NORMS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
_POSITIONS = {"learned_absolute": "learned_absolute", "absolute": "learned_absolute", "rope": "rope", "rotary": "rope"}
_FIRST = ("position_embedding_type", "use_rotary_position_embeddings", "add_position_embedding")


def activation(settings: Settings) -> Worked:
    """Return the activation: swiglu, or gelu as the tanh approximation that the fused kernel computes, or exact."""
    if is_of_yaml(settings):
        return _of_activation_func(settings)
    return _gated(settings) or _approximation(settings) or _gelu(settings)


def _gated(settings: Settings) -> Worked | None:
    if settings.value("swiglu"):
        return Worked("swiglu", ("swiglu",))
    gated = settings.value("glu_activation")
    if not gated:
        return None
    lost = () if gated == "swiglu" else (("glu_activation", f"{gated} is not offered; swiglu stands in its place"),)
    return Worked("swiglu", ("glu_activation",), lost=lost)


def _approximation(settings: Settings) -> Worked | None:
    """Return gelu's approximation where a flag or Transformer Engine computes it."""
    approximate = next((name for name in _APPROXIMATE if settings.value(name)), None)
    if approximate == "use_te_activation_func":
        return Worked("gelu_tanh", (approximate,))
    if approximate and _is_legacy(settings):
        return Worked("gelu_tanh", (approximate, *_stated_model(settings)))
    if settings.value("transformer_impl") == "transformer_engine" and _is_legacy(settings):
        names = ("transformer_impl", *_stated_model(settings))
        return Worked("gelu_tanh", names, "Transformer Engine's gelu is the approximation")
    return None


def _gelu(settings: Settings) -> Worked:
    """Return the fused bias and gelu, or the exact gelu."""
    is_exported = settings.value("onnx_safe") and "swiglu" in settings.program.flags  # looked at first since swiglu
    if settings.value("bias_gelu_fusion") and settings.value("add_bias_linear", True) and not is_exported:
        return Worked("gelu_tanh", ("bias_gelu_fusion",), "computed by the fused bias and GELU")
    idle = (("openai_gelu", "megatron-core's model does not read it"),)
    return Worked("gelu", ("onnx_safe",) if is_exported else ("bias_gelu_fusion",), idle=idle)


def is_of_yaml(settings: Settings) -> bool:
    """Say whether settings are those of a --yaml-cfg file: activation_func is no flag, and stands in every one."""
    return "activation_func" in settings.stated


def _of_activation_func(settings: Settings) -> Worked:
    """Return the activation of core_transformer_config_from_yaml, which looks at no flag and fuses no bias of gelu."""
    name = "activation_func"
    given = settings.value(name)
    why = "activation_func of the file says the activation"
    idle = tuple((flag, why) for flag in ("swiglu", "squared_relu", "openai_gelu", "bias_gelu_fusion", "onnx_safe"))
    if given == "squaredrelu":
        return Worked("gelu", (), lost=((name, "squared ReLU is not offered; gelu stands in its place"),), idle=idle)
    return Worked("swiglu" if given == "swiglu" else "gelu", (name,), idle=idle)


def _stated_model(settings: Settings) -> tuple[str, ...]:
    """Return the flags that say whether the model is megatron-core's, if they are stated."""
    return tuple(name for name in ("use_legacy_models", "use_mcore_models") if name in settings.stated)


def _is_legacy(settings: Settings) -> bool:
    """Say whether the model is not megatron-core's, which a flag chose for some years, and then the other."""
    if "deprecated_use_mcore_models" in settings.program.flags:
        return bool(settings.value("use_legacy_models"))
    return not settings.value("use_mcore_models")


def ffn_hidden_size(settings: Settings) -> Worked | None:
    """Return the width of the MLP where it is stated; bigscience's gated MLPs have 4 h too, ours less by default."""
    stated = settings.value("ffn_hidden_size")
    if stated is not None:
        return Worked(stated, ("ffn_hidden_size",))
    width = settings.value("hidden_size")
    if settings.value("glu_activation") and width is not None:
        return Worked(4 * width, ("glu_activation",), "4 x hidden_size, its default")
    return None


def normalization(settings: Settings) -> Worked | None:
    """Return the kind of norm."""
    given = settings.value("normalization")
    if given is None:
        return None
    kind = _NORMS.get(str(given).lower())
    if kind is None:
        return Worked(None, (), lost=(("normalization", f"{given} is not offered; LayerNorm stands in its place"),))
    return Worked(kind, ("normalization",))


def position_embedding_type(settings: Settings) -> Worked:
    """Return how positions enter: rope if either of two flags says so."""
    given = str(settings.value("position_embedding_type", "learned_absolute"))
    given = given.rpartition(".")[2]  # a log has PositionEmbeddingType.absolute
    if settings.value("use_rotary_position_embeddings"):
        both = settings.value("add_position_embedding") and "position_embedding_type" not in settings.program.flags
        lost = (("use_rotary_position_embeddings", "learned positions, which are added too, are left out"),)
        return Worked("rope", _FIRST, lost=lost if both else ())
    if given not in _POSITIONS:
        change = f"{given} is not offered; learned positions stand in its place"
        return Worked("learned_absolute", (), lost=(("position_embedding_type", change),))
    if settings.value("add_position_embedding") is False and _POSITIONS[given] != "rope":
        change = "a model without positions is not offered; learned positions stand in their place"
        return Worked("learned_absolute", (), lost=(("add_position_embedding", change),))
    return Worked(_POSITIONS[given], ("position_embedding_type",))


def num_query_groups(settings: Settings) -> Worked | None:
    """Return the number of key/value heads; today's Megatron-LM reads it only with --group-query-attention."""
    given = settings.value("num_query_groups")
    if "group_query_attention" not in settings.program.flags:
        own = settings.value("num_key_value_heads", given)
        return None if own is None else Worked(own, ("num_query_groups", "num_key_value_heads"))
    if is_of_yaml(settings):
        return None if given is None else Worked(given, ("num_query_groups",))
    if settings.value("group_query_attention"):
        return Worked(given, ("num_query_groups", "group_query_attention"))
    return Worked(None, (), idle=(("num_query_groups", "it is read only with --group-query-attention"),))


def apply_query_key_layer_scaling(settings: Settings) -> Worked | None:
    """Return whether scores are scaled by the layer's number; flash attention has no such scaling."""
    name = "apply_query_key_layer_scaling"
    given = settings.value(name)
    if given and any(settings.value(flash) for flash in FLASH):
        why = "flash attention has no such scaling"
        return Worked(False, tuple(flash for flash in FLASH if settings.value(flash)), why, idle=((name, why),))
    return None if given is None else Worked(given, (name,))


def attention_softmax_in_fp32(settings: Settings) -> Worked | None:
    """Return whether the softmax is in fp32: also that of every fused kernel, which computes inside in fp32."""
    names = ("attention_softmax_in_fp32", "apply_query_key_layer_scaling")
    if any(settings.value(name) for name in names):
        return Worked(True, names)
    fused = tuple(name for name in _FUSED_SOFTMAX if name in settings.program.flags)
    if any(settings.value(name) for name in fused):
        return Worked(True, fused, "the fused softmax computes in fp32")
    return Worked(False, (*names, *fused))


def make_vocab_size_divisible_by(settings: Settings) -> Worked | None:
    """Return the multiple to which the vocabulary is padded; bigscience's --pad-vocab-size-to is the padded size."""
    name = next((name for name in ("pad_vocab_size_to", "padded_vocab_size") if settings.value(name)), "")
    padded = settings.value(name)
    ranks = settings.value("tensor_model_parallel_size", 1)
    if padded and ranks > 0 and padded % ranks == 0:
        return Worked(padded // ranks, (name,), f"to {padded}, over {ranks} ranks")
    return Worked(settings.value("make_vocab_size_divisible_by"), ("make_vocab_size_divisible_by",))
