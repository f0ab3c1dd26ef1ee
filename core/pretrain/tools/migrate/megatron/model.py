"""Flags that shape the model and start its weights.

core_transformer_config_from_args and validate_args in megatron/training/arguments.py, before 2024 in
megatron/arguments.py; megatron/model/transformer.py of the versions before megatron-core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.meaning import OTHER_MODEL, Ignored, Mapped, NoEffect, NotSupported, alike, other_model
from pretrain.tools.migrate.setting import Derived, in_place, unused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.meaning import Meaning
    from pretrain.tools.migrate.setting import Function, Settings


_ACTIVATION = (
    "swiglu and the other gated ones first, then openai_gelu, then the fused bias and gelu, which is gelu_tanh"
)
_POSITION_FLAGS = "position_embedding_type, or rope with use_rotary_position_embeddings"
_GROUPS = "num_query_groups counts with group_query_attention alone; num_key_value_heads by itself"
_VOCABULARY = "the padded size / tensor-parallel ranks, or make_vocab_size_divisible_by"
_SOFTMAX = "on as well where apply_query_key_layer_scaling or the fused softmax is"
_OF_POSITIONS = "it belongs to positions that are not here: yarn, relative ones, and those of several axes"

SIZES: dict[str, Meaning] = {
    "num_layers": Mapped("model.num_layers"),
    "encoder_num_layers": Mapped("model.num_layers"),
    "hidden_size": Mapped("model.hidden_size"),
    "ffn_hidden_size": Mapped(
        "model.ffn_hidden_size", how="by default 4 x hidden_size; with --swiglu 8/3 x hidden_size in multiples of 64"
    ),
    "num_attention_heads": Mapped("model.num_attention_heads"),
    "num_query_groups": Mapped("model.num_query_groups", how=_GROUPS),
    "group_query_attention": Mapped("model.num_query_groups", how=_GROUPS),
    "num_key_value_heads": Mapped("model.num_query_groups", how=_GROUPS),
    "kv_channels": Mapped("model.kv_channels"),
    "seq_length": Mapped("model.seq_length"),
    "encoder_seq_length": Mapped("model.seq_length"),
    "max_position_embeddings": Mapped("model.max_position_embeddings"),
    "make_vocab_size_divisible_by": Mapped("model.make_vocab_size_divisible_by", how=_VOCABULARY),
    **alike(Mapped("model.make_vocab_size_divisible_by", how=_VOCABULARY), "pad_vocab_size_to padded_vocab_size"),
    "pad_vocab_size": NotSupported("the vocabulary is padded to a multiple of model.make_vocab_size_divisible_by"),
    **alike(Ignored("only models with a decoder of their own read it"), "decoder_num_layers decoder_seq_length"),
}
"""Numbers of layers, heads, positions and tokens."""

PARTS: dict[str, Meaning] = {
    "swiglu": Mapped("model.activation", {True: "swiglu"}, _ACTIVATION),
    "glu_activation": Mapped("model.activation", {"swiglu": "swiglu"}, _ACTIVATION),
    "openai_gelu": Mapped("model.activation", {True: "gelu_tanh"}, _ACTIVATION),
    "bias_gelu_fusion": Mapped(
        "model.activation",
        {True: "gelu_tanh", False: "gelu"},
        _ACTIVATION,
        "the fused kernel computes the tanh approximation, gelu is the exact one and the default",
    ),
    "onnx_safe": Mapped("model.activation", how=_ACTIVATION),
    "activation_func": Mapped(
        "model.activation", {"swiglu": "swiglu", "gelu": "gelu"}, "it alone in a --yaml-cfg file, of which it is a name"
    ),
    "use_te_activation_func": Mapped("model.activation", {True: "gelu_tanh"}, _ACTIVATION),
    "position_embedding_type": Mapped(
        "model.position_embedding_type",
        {
            "learned_absolute": "learned_absolute",
            "absolute": "learned_absolute",
            "learned": "learned_absolute",
            "rope": "rope",
            "rotary": "rope",
        },
        _POSITION_FLAGS,
    ),
    "use_rotary_position_embeddings": Mapped("model.position_embedding_type", {True: "rope"}, _POSITION_FLAGS),
    "add_position_embedding": Mapped("model.position_embedding_type", how=_POSITION_FLAGS),
    "rotary_percent": Mapped("model.rotary_percent"),
    "rotary_base": Mapped("model.rotary_base"),
    "rope_theta": Mapped("model.rotary_base"),
    "use_rope_scaling": Mapped("model.use_rope_scaling"),
    "rope_scaling_factor": Mapped("model.rope_scaling_factor"),
    "normalization": Mapped(
        "model.normalization",
        {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm", "LayerNorm": "LayerNorm", "RMSNorm": "RMSNorm"},
        "in upper and lower case alike",
    ),
    "layernorm_epsilon": Mapped("model.layernorm_epsilon"),
    "norm_epsilon": Mapped("model.layernorm_epsilon"),
    "add_bias_linear": Mapped("model.add_bias_linear"),
    "add_qkv_bias": Mapped("model.add_qkv_bias"),
    "untie_embeddings_and_output_weights": Mapped("model.untie_embeddings_and_output_weights"),
    "embed_layernorm": Mapped("model.embedding_layernorm"),
    "hidden_dropout": Mapped("model.hidden_dropout"),
    "attention_dropout": Mapped("model.attention_dropout"),
    "apply_query_key_layer_scaling": Mapped("model.apply_query_key_layer_scaling"),
    "attention_softmax_in_fp32": Mapped("model.attention_softmax_in_fp32", {True: True}, _SOFTMAX),
}
"""Norms, positions, activations and biases."""

WEIGHTS: dict[str, Meaning] = {
    "init_method_std": Mapped("model.init_method_std"),
    "init_method_xavier_uniform": NotSupported(
        "weights start from normal distributions (model.init_method), not from Xavier's uniform one"
    ),
    "embedding_init_method_std": NotSupported("embeddings start with model.init_method_std like all other weights"),
    "data_parallel_random_init": NotSupported("all replicas start with the same weights"),
    "perform_initialization": NoEffect("weights always get their first values; those of a checkpoint replace them"),
    "use_cpu_initialization": NoEffect("weights start with the same values however they are laid out"),
    "init_model_with_meta_device": NoEffect("weights start with the same values however they are laid out"),
    "sync_tp_duplicated_parameters": NoEffect("weights that all tensor-parallel ranks have get the same gradients"),
}
"""First values of weights."""

ABSENT: dict[str, Meaning] = {
    "apply_layernorm_1p": NotSupported(
        "norms keep their weights as they are, not less 1: they start alike, but weights of a checkpoint differ by 1"
    ),
    "layernorm_zero_centered_gamma": NotSupported(
        "norms keep their weights as they are, not less 1: they start alike, but weights of a checkpoint differ by 1"
    ),
    "apply_residual_connection_post_layernorm": other_model("the residual is taken before the norm, not after it"),
    "squared_relu": other_model("model.activation is gelu, gelu_tanh or swiglu; there is no squared ReLU"),
    "quick_geglu": other_model("model.activation is gelu, gelu_tanh or swiglu; there is no quick GEGLU"),
    "rotary_interleaved": other_model("rope rotates the halves of a head, not neighbouring dimensions"),
    "rotary_seq_len_interpolation_factor": other_model("rope's positions are not divided by a factor", (1, 1.0)),
    "rope_type": other_model("rope is the plain one; there is no yarn", ("rope",)),
    "no_rope_freq": other_model("all layers have the same positions"),
    "window_size": other_model("a token sees all before it, not only a window of them"),
    "window_attn_skip_freq": Ignored("it belongs to window_size"),
    "softmax_type": other_model("attention's softmax is the plain one", ("vanilla",)),
    "spec": other_model("the model is always megatron-core's GPT, and no module of your own replaces a part of it"),
    "num_unique_layers": other_model("every layer has weights of its own"),
    "param_sharing_style": other_model("every layer has weights of its own"),
    "qk_layernorm": other_model("queries and keys are not normalized"),
    "freeze_all_layers": other_model("all weights are trained"),
    **alike(other_model("learning rate and first weights do not follow from the width"), "use_mup"),
    **alike(
        Ignored("it belongs to use_mup"),
        "mup_*",
    ),
    **alike(
        other_model(OTHER_MODEL),
        """activation_func_clamp_value glu_linear_offset qk_l2_norm qk_clip attention_output_gate
        softmax_scale enable_gpt_oss""",
    ),
    **alike(Ignored("it belongs to qk_clip"), "qk_clip_*"),
    **alike(other_model("all layers are alike"), "heterogeneous_layers_config_path"),
    **alike(other_model("all layers are alike"), "heterogeneous_layers_config_encoded_json"),
    **alike(
        Ignored(_OF_POSITIONS),
        "yarn_* mrope_section relative_attention_*",
    ),
    "rotary_scaling_factor": Ignored("it belongs to multi_latent_attention"),
    **alike(
        NoEffect("the model is always megatron-core's"),
        "use_mcore_models use_legacy_models deprecated_use_mcore_models",
    ),
    "enable_experimental": NoEffect("it only permits other flags"),
}
"""Parts of a model that ours does not have."""

MODEL = SIZES | PARTS | WEIGHTS | ABSENT
"""All of them, by dest."""


FLASH = ("use_flash_attn", "use_flash_attn_v1", "use_flash_attn_v2", "use_flash_attn_triton", "use_flash_attn_builder")
"""Flags of which one switches flash attention on."""

_APPROXIMATE = ("use_te_activation_func", "openai_gelu")
_FUSED_SOFTMAX = ("masked_softmax_fusion", "scaled_masked_softmax_fusion")
"""Of v2.5 and later, and of v2.0; versions before have no such kernel."""

_NORMS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
_POSITIONS = {"learned_absolute": "learned_absolute", "absolute": "learned_absolute", "rope": "rope", "rotary": "rope"}
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
    lost = () if gated == "swiglu" else (("glu_activation", f"{gated} is not offered; swiglu stands in its place"),)
    return Derived("swiglu", ("glu_activation",), lost=lost)


def _approximation(settings: Settings) -> Derived | None:
    """Return gelu's approximation where a flag or Transformer Engine computes it."""
    approximate = next((name for name in _APPROXIMATE if settings.value(name)), None)
    if approximate == "use_te_activation_func":
        return Derived("gelu_tanh", (approximate,))
    if approximate and _is_legacy(settings):
        return Derived("gelu_tanh", (approximate, *_stated_model(settings)))
    if settings.value("transformer_impl") == "transformer_engine" and _is_legacy(settings):
        names = ("transformer_impl", *_stated_model(settings))
        return Derived("gelu_tanh", names, "Transformer Engine's gelu is the approximation")
    return None


def _gelu(settings: Settings) -> Derived:
    """Return the fused bias and gelu, or the exact gelu."""
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
        return Derived("gelu", (), lost=((name, "squared ReLU is not offered; gelu stands in its place"),), idle=idle)
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
    stated = settings.value("ffn_hidden_size")
    if stated is not None:
        return Derived(stated, ("ffn_hidden_size",))
    width = settings.value("hidden_size")
    if settings.value("glu_activation") and width is not None:
        return Derived(4 * width, ("glu_activation",), "4 x hidden_size, its default")
    return None


def normalization(settings: Settings) -> Derived | None:
    """Return the kind of norm."""
    given = settings.value("normalization")
    if given is None:
        return None
    kind = _NORMS.get(str(given).lower())
    if kind is None:
        return Derived(None, (), lost=(("normalization", f"{given} is not offered; LayerNorm stands in its place"),))
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
        change = f"{given} is not offered; learned positions stand in its place"
        return in_place("learned_absolute", "position_embedding_type", change)
    if settings.value("add_position_embedding") is False and _POSITIONS[given] != "rope":
        change = "a model without positions is not offered; learned positions stand in their place"
        return in_place("learned_absolute", "add_position_embedding", change)
    return Derived(_POSITIONS[given], ("position_embedding_type",))


def num_query_groups(settings: Settings) -> Derived | None:
    """Return the number of key/value heads; today's Megatron-LM reads it only with --group-query-attention."""
    given = settings.value("num_query_groups")
    if "group_query_attention" not in settings.program.flags:
        own = settings.value("num_key_value_heads", given)
        return None if own is None else Derived(own, ("num_query_groups", "num_key_value_heads"))
    if is_of_yaml(settings):
        return None if given is None else Derived(given, ("num_query_groups",))
    if settings.value("group_query_attention"):
        return Derived(given, ("num_query_groups", "group_query_attention"))
    return unused("num_query_groups", "it is read only with --group-query-attention")


def apply_query_key_layer_scaling(settings: Settings) -> Derived | None:
    """Return whether scores are scaled by the layer's number; flash attention has no such scaling."""
    name = "apply_query_key_layer_scaling"
    given = settings.value(name)
    if given and any(settings.value(flash) for flash in FLASH):
        why = "flash attention has no such scaling"
        return Derived(False, tuple(flash for flash in FLASH if settings.value(flash)), why, idle=((name, why),))
    return None if given is None else Derived(given, (name,))


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
    name = next((name for name in ("pad_vocab_size_to", "padded_vocab_size") if settings.value(name)), "")
    padded = settings.value(name)
    ranks = settings.value("tensor_model_parallel_size", 1)
    if padded and ranks > 0 and padded % ranks == 0:
        return Derived(padded // ranks, (name,), f"to {padded}, over {ranks} ranks")
    return Derived(settings.value("make_vocab_size_divisible_by"), ("make_vocab_size_divisible_by",))


FUNCTIONS: Mapping[str, Function] = {
    "model.activation": activation,
    "model.ffn_hidden_size": ffn_hidden_size,
    "model.normalization": normalization,
    "model.position_embedding_type": position_embedding_type,
    "model.num_query_groups": num_query_groups,
    "model.apply_query_key_layer_scaling": apply_query_key_layer_scaling,
    "model.attention_softmax_in_fp32": attention_softmax_in_fp32,
    "model.make_vocab_size_divisible_by": make_vocab_size_divisible_by,
}
"""By key of the recipe."""
