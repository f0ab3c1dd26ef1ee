"""How rope is scaled, among the arguments of Megatron-LM.

RotaryEmbedding and YarnRotaryEmbedding in megatron/core/models/common/embeddings; `_apply_yarn_config_from_args` in
megatron/training/argument_utils.py, which has the defaults of what is not given. YaRN reads no --rotary-percent, no
--use-rope-scaling and no --rotary-seq-len-interpolation-factor, which is the linear type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.model.rope import MSCALE_DIGITS, attention_factor, concentration, mscale_of
from pretrain.tools.convert.rank_parts import not_ours
from pretrain.tools.convert.weight_names import bounded, plain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pretrain.recipe.sections.model import ModelSection

_DIVISOR = "rotary_seq_len_interpolation_factor"
_ROUND, _LENGTH = "yarn_correction_range_round_to_int", "yarn_original_max_position_embeddings"
# what RotaryEmbedding has as constants
_OF_LLAMA3 = {"rope_low_freq_factor": 1.0, "rope_high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def settings_of_rope(path: Path, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of rope's scaling beside use_rope_scaling and its factor, for a model with rope."""
    if args.get("position_embedding_type") == "yarn" and not args.get("use_rotary_position_embeddings"):
        return _of_yarn(path, args)
    divisor = args.get(_DIVISOR)
    if divisor is None or divisor == 1:
        return {}
    if args.get("use_rope_scaling"):
        raise not_ours(path, f"use_rope_scaling and {_DIVISOR} {bounded(divisor)}, which scale rope twice")
    return {"use_rope_scaling": True, "rope_scaling_type": "linear", "rope_scaling_factor": plain(divisor)}


def _of_yarn(path: Path, args: Mapping[str, Any]) -> dict[str, Any]:
    factor, mscale, below = (
        _number(path, args, name, default)
        for name, default in (("rotary_scaling_factor", 1.0), ("mscale", 1.0), ("mscale_all_dim", 0.0))
    )
    length, is_round = args.get(_LENGTH), args.get(_ROUND)
    is_default = (mscale, below) == (1.0, 0.0)
    return {
        "rotary_percent": 1.0,
        "use_rope_scaling": True,
        "rope_scaling_type": "yarn",
        "rope_scaling_factor": factor,
        "original_max_position_embeddings": 4096 if length is None else plain(length),
        "yarn_beta_fast": _number(path, args, "yarn_beta_fast", 32.0),
        "yarn_beta_slow": _number(path, args, "yarn_beta_slow", 1.0),
        "yarn_attention_factor": None if is_default else round(concentration(factor, mscale, below), MSCALE_DIGITS),
        _ROUND: True if is_round is None else plain(is_round),
    }


def _number(path: Path, args: Mapping[str, Any], name: str, default: float) -> float:
    found = args.get(name)
    if found is None:
        return default
    if type(found) not in {int, float}:
        raise not_ours(path, f"{name} {bounded(found)}")
    return float(found)


def is_yarn(model: ModelSection) -> bool:
    """Say whether rope's type is yarn, which is a position_embedding_type there."""
    return model.use_rope_scaling and model.rope_scaling_type == "yarn"


def args_of_rope(model: ModelSection) -> dict[str, Any]:
    """Return the arguments that say how rope is scaled."""
    kind, factor = model.rope_scaling_type if model.use_rope_scaling else None, model.rope_scaling_factor
    return {
        "use_rope_scaling": kind == "llama3",
        "rope_scaling_factor": factor if kind == "llama3" else 8.0,
        _DIVISOR: int(factor) if kind == "linear" else None,
        **(_args_of_yarn(model) if kind == "yarn" else {}),
    }


def _args_of_yarn(model: ModelSection) -> dict[str, Any]:
    return {
        "rotary_scaling_factor": model.rope_scaling_factor,
        _LENGTH: model.original_max_position_embeddings,
        "yarn_beta_fast": model.yarn_beta_fast,
        "yarn_beta_slow": model.yarn_beta_slow,
        "mscale": _mscale(model),
        "mscale_all_dim": 0.0,
        _ROUND: model.yarn_correction_range_round_to_int,
    }


def _mscale(model: ModelSection) -> float:
    """Return the mscale with which, and with mscale_all_dim 0, YaRN's factor of cos and sin is the model's."""
    if model.yarn_attention_factor is None or model.rope_scaling_factor <= 1:
        return 1.0
    return mscale_of(model.rope_scaling_factor, model.yarn_attention_factor)


def missing_of_rope(model: ModelSection) -> dict[str, bool]:
    """Return what Megatron-LM does not have of rope's scaling -> whether the model needs it."""
    kind = model.rope_scaling_type if model.use_rope_scaling else None
    of_llama3 = ", ".join(f"{name} {value:g}" for name, value in _OF_LLAMA3.items())
    is_other = any(getattr(model, name) != value for name, value in _OF_LLAMA3.items())
    factor = model.rope_scaling_factor
    return {
        f"use_rope_scaling with other than {of_llama3}": kind == "llama3" and is_other,
        "rope_scaling_type dynamic": kind == "dynamic",
        f"rope_scaling_type linear with rope_scaling_factor {factor:g}": kind == "linear" and not factor.is_integer(),
        f"rope_scaling_type yarn with rotary_percent {model.rotary_percent:g}": kind == "yarn"
        and model.rotary_percent != 1,
        "rope_scaling_type yarn with rope_scaling_factor 1 and yarn_attention_factor": kind == "yarn"
        and factor == 1
        and attention_factor(model) != 1,
    }
