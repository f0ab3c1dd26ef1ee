"""GPT-NeoX's settings of the model and of its kernels (NeoXArgsModel)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pretrain.tools.migrate.neox.objects import number, refused, stated, whole
from pretrain.tools.migrate.setting import Derived, in_place, taken, unused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pretrain.tools.migrate.setting import Function, Settings

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


_WITH_OLD_MLP = {"gpt-neox-2.0", "gpt-neox-2023.05", "gpt-neox-2023.10", "gpt-neox-2024.08"}


def _has_llama_mlp(settings: Settings) -> bool:
    """Say whether the MLP is LLaMA's, which mlp_type chose until September 2024 (`LLaMAParallelMLP`)."""
    return bool(settings.value("mlp_type") == "llama")


def _has_old_mlp(settings: Settings) -> bool:
    """Say whether only LLaMA's MLP is gated and has a width: until September 2024 (`ParallelMLP`, commit 0d4bdb96)."""
    return settings.program.name in _WITH_OLD_MLP or settings.value("mlp_type") is not None


def activation(settings: Settings) -> Derived:
    """Return the activation; gelu is its tanh approximation where the fused bias and gelu computes it."""
    given = _word(settings, "activation", "gelu")
    if given == "swiglu" and _has_old_mlp(settings):
        why = f"{settings.program.title} has no swiglu"
        raise refused(settings, "activation", why, "There it is mlp_type llama with activation silu")
    if _has_llama_mlp(settings):
        return _of_llama(settings, given)
    if given == "swiglu":
        return Derived("swiglu", ("activation",))
    names = ("activation", "mlp_type") if settings.value("mlp_type") else ("activation",)
    if given == "gelu":
        fused = bool(settings.value("bias_gelu_fusion"))
        note = "computed by the fused bias and gelu" if fused else ""
        return Derived("gelu_tanh" if fused else "gelu", (*names, "bias_gelu_fusion"), note)
    other = "swiglu" if given in _GATED else "gelu"
    return Derived(other, names[1:], lost=(("activation", f"{given} is not supported; {other} is used instead"),))


def _of_llama(settings: Settings, given: str) -> Derived:
    """Return the activation of LLaMA's MLP, which multiplies the activated half by the other and drops nothing."""
    lost = []
    if given not in _SILU:
        lost.append(("activation", f"an MLP gated by {given} is not supported; swiglu is used instead"))
    if settings.value("hidden_dropout"):
        change = "it drops outputs of the MLP too, which GPT-NeoX's MLP of LLaMA does not"
        lost.append(("hidden_dropout", change))
    return Derived("swiglu", ("mlp_type", "activation"), "mlp_type is llama", lost=tuple(lost))


def ffn_hidden_size(settings: Settings) -> Derived | None:
    """Return the width of the MLP: of a gated one two thirds in half, and in multiples of mlp_multiple_of."""
    if settings.value("hidden_size") is None:
        return None
    whole(settings, "hidden_size", 1)  # also where the width does not need it: a recipe computes with it
    if _has_old_mlp(settings):
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
    if not _has_llama_mlp(settings):
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
            why = f"intermediate_size is {settings.value('intermediate_size')}, and GPT-NeoX takes only one of the two"
            raise refused(settings, "expansion_factor", why, "Remove one of them")
        return whole(settings, "intermediate_size", 1)
    factor = number(settings, "expansion_factor", 4) or 4
    if not 0 < factor < _LARGEST_FACTOR:
        why = f"{factor} x hidden_size is not a possible width of an MLP"
        raise refused(settings, "expansion_factor", why, "Give a factor such as 4")
    return int(factor * whole(settings, "hidden_size", 1))


def _normalization(settings: Settings) -> Derived:
    given = _word(settings, "norm", "layernorm")
    kind = _NORMS.get(given)
    if kind is None:
        return in_place("LayerNorm", "norm", f"{given} is not supported; LayerNorm is used instead")
    return Derived(kind, ("norm",))


def layernorm_epsilon(settings: Settings) -> Derived | None:
    """Return the epsilon of the norm that is chosen."""
    names = ("rms_norm_epsilon", "layernorm_epsilon")
    name, other = names if _normalization(settings).value == "RMSNorm" else names[::-1]
    idle = ((other, f"it belongs to another norm than {_word(settings, 'norm', 'layernorm')}"),)
    value = settings.value(name)
    return None if value is None else Derived(value, (name, "norm"), idle=idle)


def _position_embedding_type(settings: Settings) -> Derived:
    given = _word(settings, "pos_emb", "learned")
    if given in _POSITIONS:
        return Derived(_POSITIONS[given], ("pos_emb",))
    change = "a model without positions" if given == "none" else given
    return in_place("learned_absolute", "pos_emb", f"{change} is not supported; learned positions are used instead")


def _of_rope(settings: Settings, name: str) -> Derived | None:
    if _word(settings, "pos_emb", "learned") != "rotary":
        return unused(name, "pos_emb is not rotary")
    return taken(settings, name)


def add_bias_linear(settings: Settings) -> Derived:
    """Return whether linear layers have a bias, which attention and MLP have or lack together here."""
    attention, mlp = (settings.value(name, True) for name in _BIASES)
    decides = "use_bias_in_mlp"
    if _has_llama_mlp(settings):
        mlp, decides = False, "mlp_type"
    if attention == mlp:
        return Derived(attention, (_BIASES[0], decides))
    change = f"linear layers of attention and MLP have {'a' if attention else 'no'} bias together"
    return Derived(attention, _BIASES[:1], lost=((decides, change),))


def _start(settings: Settings, name: str, default: str) -> Derived:
    """Return how weights start, or those of the last layers of attention and MLP."""
    offered = dict.fromkeys((default, "normal", "small_init", "wang_init"))
    given = _word(settings, name, default)
    if given in offered:
        return Derived(given, (name,))
    return in_place(default, name, f"{given} is not supported; {default} is used instead")


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
    """Return the kernel of attention; other kinds of layers than attention to all tokens are not supported."""
    if settings.value("use_triangle_attn"):
        return Derived("triangle", ("use_triangle_attn",))
    kinds = sorted(set(_kinds(settings)))
    if kinds in (["flash"], ["global"], []):
        return Derived("flash" if kinds == ["flash"] else "auto", ("attention_config",))
    if kinds == ["flash", "global"]:
        return Derived("auto", ("attention_config",), "flash and global are both attention to all earlier tokens")
    others = ", ".join(kind for kind in kinds if kind not in {"flash", "global"})
    change = f"{others} is not supported; attention to all earlier tokens is used instead"
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
    "model.init_method": partial(_start, name="init_method", default="normal"),
    "model.layernorm_epsilon": layernorm_epsilon,
    "model.normalization": _normalization,
    "model.output_layer_init_method": partial(_start, name="output_layer_init_method", default="scaled_normal"),
    "model.position_embedding_type": _position_embedding_type,
    "model.rotary_base": partial(_of_rope, name="rotary_emb_base"),
    "model.rotary_percent": partial(_of_rope, name="rotary_pct"),
    "kernels.attention": attention,
}
