"""GPT-NeoX's settings of the model and of its kernels (NeoXArgsModel)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.tools.migrate.meaning import Ignored, Mapped, NoEffect, NotSupported, alike, other_model
from pretrain.tools.migrate.neox.objects import number, refused, stated, whole
from pretrain.tools.migrate.neox.precision import has_llama_mlp, has_old_mlp
from pretrain.tools.migrate.setting import Derived, in_place, taken, unused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pretrain.tools.migrate.meaning import Meaning
    from pretrain.tools.migrate.setting import Function, Settings


_NORM = "norm chooses between layernorm_epsilon and rms_norm_epsilon"
_MLP = "worked out of intermediate_size or expansion_factor, activation and mlp_multiple_of, as its MLP does"
_BIAS = "use_bias_in_attn_linear and use_bias_in_mlp decide together"
_SOFTMAX = "worked out of it and the fused softmax, which computes in fp32"
_FUSION = "kernels are negotiated, and one that does not fit is not offered; section kernels names others"

ARCHITECTURE: dict[str, Meaning] = {
    "num_layers": Mapped("model.num_layers"),
    "hidden_size": Mapped("model.hidden_size"),
    "num_attention_heads": Mapped("model.num_attention_heads"),
    "num_kv_heads": Mapped("model.num_query_groups"),
    "seq_length": Mapped("model.seq_length"),
    "max_position_embeddings": Mapped("model.max_position_embeddings"),
    "intermediate_size": Mapped("model.ffn_hidden_size", how=_MLP),
    "expansion_factor": Mapped("model.ffn_hidden_size", how=_MLP),
    "mlp_multiple_of": Mapped("model.ffn_hidden_size", how=_MLP),
    "activation": Mapped("model.activation", how="gelu is gelu_tanh where bias_gelu_fusion computes it"),
    "mlp_type": Mapped("model.activation", how="llama is a gated MLP without biases, in which silu is swiglu"),
    "bias_gelu_fusion": Mapped("model.activation", how="the fused kernel computes gelu_tanh in the place of gelu"),
    "norm": Mapped("model.normalization", values={"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}, how=_NORM),
    "layernorm_epsilon": Mapped("model.layernorm_epsilon", how=_NORM),
    "rms_norm_epsilon": Mapped("model.layernorm_epsilon", how=_NORM),
    "pos_emb": Mapped(
        "model.position_embedding_type",
        values={"rotary": "rope", "learned": "learned_absolute"},
        how="learned and rotary positions are offered",
    ),
    "rotary_pct": Mapped("model.rotary_percent", how="with pos_emb rotary"),
    "rotary_emb_base": Mapped("model.rotary_base", how="with pos_emb rotary"),
    "no_weight_tying": Mapped("model.untie_embeddings_and_output_weights"),
    "gpt_j_residual": Mapped("model.parallel_residual"),
    "hidden_dropout": Mapped("model.hidden_dropout"),
    "attention_dropout": Mapped("model.attention_dropout"),
    "init_method": Mapped("model.init_method", how="normal, small_init and wang_init are offered"),
    "init_method_std": Mapped("model.init_method_std"),
    "output_layer_init_method": Mapped(
        "model.output_layer_init_method", how="normal, scaled_normal, small_init and wang_init are offered"
    ),
    "use_bias_in_attn_linear": Mapped("model.add_bias_linear", how=_BIAS),
    "use_bias_in_mlp": Mapped("model.add_bias_linear", how=_BIAS),
    "apply_query_key_layer_scaling": Mapped("model.apply_query_key_layer_scaling"),
    "attention_softmax_in_fp32": Mapped("model.attention_softmax_in_fp32", how=_SOFTMAX),
    "scaled_upper_triang_masked_softmax_fusion": Mapped("model.attention_softmax_in_fp32", how=_SOFTMAX),
    "scaled_masked_softmax_fusion": Mapped("model.attention_softmax_in_fp32", how=_SOFTMAX),
    "make_vocab_size_divisible_by": Mapped("model.make_vocab_size_divisible_by"),
    "fp16_lm_cross_entropy": Mapped("precision.fp16_lm_cross_entropy"),
    "attention_config": Mapped("kernels.attention", how="the kinds of attention of all layers decide together"),
    "use_triangle_attn": Mapped("kernels.attention", values={True: "triangle"}, how="with attention_config"),
    "gpt_j_tied": other_model(
        "attention and MLP of a parallel residual have a norm each, instead of one together", unless=(False,)
    ),
    "use_bias_in_norms": Ignored("GPT-NeoX builds its norms without looking at it"),
    "use_qk_layernorm": other_model("queries and keys are not normalized", unless=(False,)),
    "sliding_window_width": other_model("every token sees all before it, instead of a window of them", unless=(None,)),
    "sparsity_config": other_model("attention is not sparse", unless=(None, {})),
    "num_unique_layers": other_model("every layer has weights of its own", unless=(None,)),
    "param_sharing_style": Ignored("it belongs to num_unique_layers"),
    "opt_pos_emb_offset": other_model("positions are counted from 0", unless=(0,)),
    "scalenorm_epsilon": Ignored("it belongs to norm scalenorm, which is not offered"),
    "rpe_num_buckets": Ignored("it belongs to pos_emb rpe, which is not offered"),
    "rpe_max_distance": Ignored("it belongs to pos_emb rpe, which is not offered"),
    "soft_prompt_tuning": other_model("all weights are trained, and there is no soft prompt", unless=(None, {})),
    "soft_prompt_tuning.enabled": other_model("all weights are trained, and there is no soft prompt", unless=(False,)),
    "output_layer_parallelism": NoEffect("the output layer is always split by columns, over the vocabulary"),
    "use_cpu_initialization": NoEffect("weights start with the same values however they are laid out"),
    "rotary_save_freqs_buffer": NoEffect("rope's wavelengths are computed, and no checkpoint needs them"),
    "fused_kernels_build_path": NoEffect("kernels are built by the device's plugin"),
    "onnx_safe": NoEffect("it is for an export after the training; its gelu is the exact one"),
    "padded_vocab_size": Ignored("GPT-NeoX works it out itself"),
    **alike(
        NoEffect(_FUSION),
        """layernorm_fusion rmsnorm_fusion use_flashattn_swiglu bias_dropout_fusion rope_fusion te_columnparallel
        te_rowparallel""",
    ),
    "te_layernorm_mlp": NoEffect(_FUSION),
    "te_mha": NoEffect(_FUSION),
    "te_fp8_mha": NotSupported("attention is computed in precision.dtype, not in fp8", unless=(False,)),
}


_GATED = {"swiglu", "geglu", "reglu", "bilinear", "glu"}
_NORMS = {
    "layernorm": "LayerNorm",
    "te_layernorm": "LayerNorm",
    "rmsnorm": "RMSNorm",
    "te_rmsnorm": "RMSNorm",
    "scalenorm": None,
    "non_parametric_layernorm": None,
}
_POSITIONS = {"learned": "learned_absolute", "rotary": "rope"}
_WIDTH = ("intermediate_size", "expansion_factor", "mlp_multiple_of")
_SILU = {"silu", "swish"}
_LARGEST_FACTOR = 1000
_BIASES = ("use_bias_in_attn_linear", "use_bias_in_mlp")
_FUSED = ("scaled_upper_triang_masked_softmax_fusion", "scaled_masked_softmax_fusion")


def activation(settings: Settings) -> Derived:
    """Return the activation; gelu is its tanh approximation where the fused bias and gelu computes it."""
    given = _word(settings, "activation", "gelu")
    if given == "swiglu" and has_old_mlp(settings):
        why = f"{settings.program.title} has no swiglu"
        raise refused(settings, "activation", why, "There it is mlp_type llama with activation silu")
    if has_llama_mlp(settings):
        return _of_llama(settings, given)
    if given == "swiglu":
        return Derived("swiglu", ("activation",))
    names = ("activation", "mlp_type") if settings.value("mlp_type") else ("activation",)
    if given == "gelu":
        fused = bool(settings.value("bias_gelu_fusion"))
        note = "computed by the fused bias and gelu" if fused else ""
        return Derived("gelu_tanh" if fused else "gelu", (*names, "bias_gelu_fusion"), note)
    other = "swiglu" if given in _GATED else "gelu"
    return Derived(other, names[1:], lost=(("activation", f"{given} is not offered; {other} stands in its place"),))


def _of_llama(settings: Settings, given: str) -> Derived:
    """Return the activation of LLaMA's MLP, which multiplies the activated half by the other and drops nothing."""
    lost = []
    if given not in _SILU:
        lost.append(("activation", f"an MLP gated by {given} is not offered; swiglu stands in its place"))
    if settings.value("hidden_dropout"):
        change = "it drops outputs of the MLP too, which GPT-NeoX's MLP of LLaMA does not"
        lost.append(("hidden_dropout", change))
    return Derived("swiglu", ("mlp_type", "activation"), "mlp_type is llama", lost=tuple(lost))


def ffn_hidden_size(settings: Settings) -> Derived | None:
    """Return the width of the MLP: of a gated one two thirds in half, and in multiples of mlp_multiple_of."""
    if settings.value("hidden_size") is None:
        return None
    whole(settings, "hidden_size", 1)  # also where the width does not need it: a recipe computes with it
    if has_old_mlp(settings):
        return _old_width(settings)
    is_gated = _word(settings, "activation", "gelu") in _GATED
    names = (*stated(settings, *_WIDTH), *(("activation",) if is_gated else ()))
    if not names:
        return None  # 4 x hidden_size in both
    width, multiple = _base(settings), max(1, whole(settings, "mlp_multiple_of", 1))
    inside = width * 2 // 3 // 2 if is_gated else width
    note = f"{width} x 2/3 / 2, because it is gated" if is_gated else ""
    return Derived(-(-inside // multiple) * multiple, names, note)


def _old_width(settings: Settings) -> Derived | None:
    """Return the width until September 2024: intermediate_size is that of each half, and only of LLaMA's MLP."""
    hidden, name = whole(settings, "hidden_size", 1), "intermediate_size"
    if not has_llama_mlp(settings):
        idle = ((name, f"{settings.program.title} reads it with mlp_type llama alone"),)
        if _word(settings, "activation", "gelu") == "geglu":
            return Derived(2 * hidden, ("activation",), "geglu's halves of 4 x hidden_size", idle=idle)
        return Derived(None, (), idle=idle)
    if settings.value(name) is not None:
        return Derived(whole(settings, name, 1), (name, "mlp_type"))
    return Derived(-(-(8 * hidden // 3) // 256) * 256, ("mlp_type",), "8/3 x hidden_size, in multiples of 256")


def _base(settings: Settings) -> int:
    if settings.value("intermediate_size"):
        if settings.value("expansion_factor") is not None:
            why = f"intermediate_size is {settings.value('intermediate_size')}, and GPT-NeoX takes one of the two alone"
            raise refused(settings, "expansion_factor", why, "Remove one of them")
        return whole(settings, "intermediate_size", 1)
    factor = number(settings, "expansion_factor", 4) or 4
    if not 0 < factor < _LARGEST_FACTOR:
        why = f"{factor} x hidden_size is no width of an MLP"
        raise refused(settings, "expansion_factor", why, "Give such as 4")
    return int(factor * whole(settings, "hidden_size", 1))


def normalization(settings: Settings) -> Derived:
    """Return the kind of norm."""
    given = _word(settings, "norm", "layernorm")
    kind = _NORMS.get(given)
    if kind is None:
        return in_place("LayerNorm", "norm", f"{given} is not offered; LayerNorm stands in its place")
    return Derived(kind, ("norm",))


def layernorm_epsilon(settings: Settings) -> Derived | None:
    """Return the epsilon of the norm that is chosen."""
    names = ("rms_norm_epsilon", "layernorm_epsilon")
    name, other = names if normalization(settings).value == "RMSNorm" else names[::-1]
    idle = ((other, f"it belongs to another norm than {_word(settings, 'norm', 'layernorm')}"),)
    value = settings.value(name)
    return None if value is None else Derived(value, (name, "norm"), idle=idle)


def position_embedding_type(settings: Settings) -> Derived:
    """Return how positions enter."""
    given = _word(settings, "pos_emb", "learned")
    if given in _POSITIONS:
        return Derived(_POSITIONS[given], ("pos_emb",))
    change = "a model without positions" if given == "none" else given
    return Derived(
        "learned_absolute", (), lost=(("pos_emb", f"{change} is not offered; learned positions stand in its place"),)
    )


def rotary_percent(settings: Settings) -> Derived | None:
    """Return the part of a head that rope rotates."""
    return _of_rope(settings, "rotary_pct")


def rotary_base(settings: Settings) -> Derived | None:
    """Return the base of rope's wavelengths."""
    return _of_rope(settings, "rotary_emb_base")


def _of_rope(settings: Settings, name: str) -> Derived | None:
    if _word(settings, "pos_emb", "learned") != "rotary":
        return unused(name, "pos_emb is not rotary")
    return taken(settings, name)


def add_bias_linear(settings: Settings) -> Derived:
    """Return whether linear layers have a bias, which attention and MLP have or lack together here."""
    attention, mlp = (settings.value(name, True) for name in _BIASES)
    decides = "use_bias_in_mlp"
    if has_llama_mlp(settings):
        mlp, decides = False, "mlp_type"
    if attention == mlp:
        return Derived(attention, (_BIASES[0], decides))
    change = f"linear layers of attention and MLP have {'a' if attention else 'no'} bias together"
    return Derived(attention, _BIASES[:1], lost=((decides, change),))


def init_method(settings: Settings) -> Derived:
    """Return how weights start."""
    return _start(settings, "init_method", ("normal", "small_init", "wang_init"))


def output_layer_init_method(settings: Settings) -> Derived:
    """Return how the last layers of attention and MLP start."""
    return _start(settings, "output_layer_init_method", ("scaled_normal", "normal", "small_init", "wang_init"))


def _start(settings: Settings, name: str, offered: tuple[str, ...]) -> Derived:
    given = _word(settings, name, offered[0])
    if given in offered:
        return Derived(given, (name,))
    return Derived(offered[0], (), lost=((name, f"{given} is not offered; {offered[0]} stands in its place"),))


def attention_softmax_in_fp32(settings: Settings) -> Derived | None:
    """Return whether the softmax is in fp32: also that of every fused kernel, which computes inside in fp32."""
    names = ("attention_softmax_in_fp32", "apply_query_key_layer_scaling")
    if any(settings.value(name) for name in names):
        return Derived(True, names)
    if any(settings.value(name) for name in _FUSED):
        return Derived(True, _FUSED, "the fused softmax computes in fp32")
    if set(_kinds(settings)) == {"flash"}:
        return Derived(True, ("attention_config",), "flash attention computes it in fp32")
    return Derived(False, names)


def attention(settings: Settings) -> Derived:
    """Return the kernel of attention; other kinds of layers than attention to all tokens are not offered."""
    if settings.value("use_triangle_attn"):
        return Derived("triangle", ("use_triangle_attn",))
    kinds = sorted(set(_kinds(settings)))
    if kinds in (["flash"], ["global"], []):
        return Derived("flash" if kinds == ["flash"] else "auto", ("attention_config",))
    if kinds == ["flash", "global"]:
        return Derived("auto", ("attention_config",), "flash and global are both attention to all tokens before")
    others = ", ".join(kind for kind in kinds if kind not in {"flash", "global"})
    change = f"{others} is not offered; attention to all tokens before stands in its place"
    return in_place("auto", "attention_config", change)


def _kinds(settings: Settings) -> Iterator[str]:
    """Yield the kinds of attention that a list such as [[[flash, local], 6]] names, in small or capital letters."""
    left: list[Any] = [settings.value("attention_config", [])]
    while left:
        item = left.pop()
        if isinstance(item, list):
            left += item[:1] if len(item) == 2 and isinstance(item[0], list) and not isinstance(item[1], list) else item
        else:
            yield str(item)


def _word(settings: Settings, name: str, otherwise: str) -> str:
    """Return a choice, which GPT-NeoX takes in small and in capital letters."""
    return str(settings.value(name, otherwise)).lower()


FUNCTIONS: Mapping[str, Function] = {
    "model.activation": activation,
    "model.add_bias_linear": add_bias_linear,
    "model.attention_softmax_in_fp32": attention_softmax_in_fp32,
    "model.ffn_hidden_size": ffn_hidden_size,
    "model.init_method": init_method,
    "model.layernorm_epsilon": layernorm_epsilon,
    "model.normalization": normalization,
    "model.output_layer_init_method": output_layer_init_method,
    "model.position_embedding_type": position_embedding_type,
    "model.rotary_base": rotary_base,
    "model.rotary_percent": rotary_percent,
    "kernels.attention": attention,
}
"""By key of the recipe."""
