"""How rope is scaled: Llama 3's way by a switch, linearly by a divisor, YaRN as a kind of positions, or by a type."""

# Sources: GPTModel and YarnRotaryEmbedding in megatron/core/models, `_apply_yarn_config_from_args` in
# megatron/training/argument_utils.py; for the type rotary_pos_embedding.py of MindSpeed-LLM (core/models/common).

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.model.rope import MSCALE_DIGITS, concentration
from pretrain.tools.migrate.megatron.model import is_yarn, position_embedding_type
from pretrain.tools.migrate.setting import Derived, taken, unused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.setting import Function, Settings

_SWITCH, _TYPE, _DIVISOR = "use_rope_scaling", "rope_scaling_type", "rotary_seq_len_interpolation_factor"
_FACTOR, _FACTOR_OF_YARN = "rope_scaling_factor", "rotary_scaling_factor"
_LENGTH, _LENGTH_OF_YARN = "original_max_position_embeddings", "yarn_original_max_position_embeddings"
_LENGTH_OF_TYPE = "rope_scaling_original_max_position_embeddings"
_MSCALES = ("mscale", "mscale_all_dim")
_MSCALES_OF_TYPE = ("rope_scaling_mscale", "rope_scaling_mscale_all_dim")


def _kind(settings: Settings) -> tuple[str, tuple[str, ...]]:
    """Return how rope is scaled, empty where it is not, and the settings that say so."""
    if is_yarn(settings):
        return "yarn", ("position_embedding_type",)
    if position_embedding_type(settings).value != "rope":
        return "", ()
    if settings.value(_TYPE):
        given = str(settings.value(_TYPE))
        is_complete = given == "llama3" or (given == "yarn" and _times_longer(settings) is not None)
        return given if is_complete else "", (_TYPE,)
    if settings.value(_SWITCH):
        return "llama3", (_SWITCH,)
    return ("linear", (_DIVISOR,)) if settings.value(_DIVISOR, 1) != 1 else ("", ())


def use_rope_scaling(settings: Settings) -> Derived | None:
    """Return whether rope is scaled, and what is lost: a second scaling, which YaRN's positions do not read."""
    kind, names = _kind(settings)
    if not names:
        return taken(settings, _SWITCH)
    is_there = {_SWITCH: bool(settings.value(_SWITCH)), _DIVISOR: settings.value(_DIVISOR, 1) != 1}
    others = [name for name, there in is_there.items() if there and name not in names]
    if is_yarn(settings):
        return Derived(True, names, idle=tuple((name, "yarn does not read it") for name in others))
    lost = tuple((name, f"rope is scaled once, by {names[0]}, and not a second time") for name in others)
    if kind:
        return Derived(True, names, lost=lost)
    given = settings.value(_TYPE)
    why = f"yarn without {_LENGTH_OF_TYPE} is not known" if given == "yarn" else f"{given} is not supported"
    return Derived(False, (), lost=((_TYPE, f"{why}; rope is not scaled"), *lost))


def _type(settings: Settings) -> Derived | None:
    kind, names = _kind(settings)
    return Derived(kind, names) if kind else None


def _factor(settings: Settings) -> Derived | None:
    match _kind(settings):
        case "yarn", (name,) if name == _TYPE:
            names = ("max_position_embeddings", _LENGTH_OF_TYPE)
            return Derived(_times_longer(settings), names, "the length over the original one")
        case "yarn", _:
            return Derived(settings.value(_FACTOR_OF_YARN, 1.0), (_FACTOR_OF_YARN,))
        case "linear", _:
            return taken(settings, _DIVISOR)
    return taken(settings, _FACTOR)


def _times_longer(settings: Settings) -> float | None:
    """Return the factor that MindSpeed-LLM computes of lengths, and writes over --rope-scaling-factor."""
    after, before = settings.value("max_position_embeddings"), settings.value(_LENGTH_OF_TYPE)
    return after / before if after and before else None


def _original_length(settings: Settings) -> Derived | None:
    kind, names = _kind(settings)
    if kind == "yarn":
        name, default = (_LENGTH_OF_TYPE, None) if names == (_TYPE,) else (_LENGTH_OF_YARN, 4096)
        return Derived(settings.value(name, default), (name,))
    given = settings.value(_LENGTH)  # a float there
    if kind != "llama3" or given is None:
        return None
    return Derived(int(given) if given == int(given) else given, (_LENGTH,))


def _attention_factor(settings: Settings) -> Derived | None:
    kind, names = _kind(settings)
    factor = _factor(settings)
    if kind != "yarn" or factor is None:
        return None
    mscales = _MSCALES_OF_TYPE if names == (_TYPE,) else _MSCALES
    one, other = settings.value(mscales[0], 1.0), settings.value(mscales[1], 0.0)
    if (one, other) == (1.0, 0.0):
        return None
    return Derived(round(concentration(factor.value, one, other), MSCALE_DIGITS), mscales)


def _rotary_percent(settings: Settings) -> Derived | None:
    name = "rotary_percent"
    if _kind(settings)[0] == "yarn" and settings.value(name, 1.0) != 1:
        return unused(name, "yarn rotates whole heads")
    return taken(settings, name)


FUNCTIONS: Mapping[str, Function] = {
    "model.rotary_percent": _rotary_percent,
    "model.use_rope_scaling": use_rope_scaling,
    "model.rope_scaling_type": _type,
    "model.rope_scaling_factor": _factor,
    "model.original_max_position_embeddings": _original_length,
    "model.yarn_attention_factor": _attention_factor,
}
