"""Rope's settings in Hugging Face's config.json, and how it is scaled.

transformers 5 keeps them in `rope_parameters` (modeling_rope_utils.py, convert_rope_params_to_dict), 4 in `rope_theta`,
`rope_scaling` and `partial_rotary_factor`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.model.rope import concentration
from pretrain.recipe.section import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pretrain.recipe.sections.model import ModelSection

BASE, PART = ("rope_theta", "rotary_emb_base"), ("partial_rotary_factor", "rotary_pct")
"""Names of rotary_base and rotary_percent, the first that is there."""

_FACTOR = {"rope_scaling_factor": "factor"}
_LENGTH = {"original_max_position_embeddings": "original_max_position_embeddings"}
_BANDS = {"rope_low_freq_factor": "low_freq_factor", "rope_high_freq_factor": "high_freq_factor"}
_OF_YARN = {
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
    "yarn_attention_factor": "attention_factor",
    "yarn_correction_range_round_to_int": "truncate",
}
# rope_type -> settings of a recipe and their names among its parameters
_PARAMETERS = {
    "llama3": _FACTOR | _BANDS | _LENGTH,
    "linear": _FACTOR,
    "dynamic": _FACTOR,
    "yarn": _FACTOR | _LENGTH | _OF_YARN,
}
_NEEDED = _FACTOR.keys() | _BANDS.keys()  # others have a default in transformers
_MSCALES = ("mscale", "mscale_all_dim")
# names of rope's own section in transformers 4 and 5, in the order in which 5 looks for them
_SECTIONS = ("rope_scaling", "rope_parameters")


def rope_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first of rope's own sections that config.json has; {} if there is none."""
    found: object = next((config[name] for name in _SECTIONS if config.get(name)), {})
    return dict(found) if isinstance(found, dict) else {}


def _type_of(rope: Mapping[str, Any]) -> Any:
    return rope.get("rope_type", rope.get("type", "default"))


def scaling_of(config: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of rope's scaling, of whatever type; {} where it is not scaled, or as no recipe can say."""
    rope = rope_of(config)
    kind = _type_of(rope)
    if not isinstance(kind, str) or kind not in _PARAMETERS:
        return {}
    length, positions = "original_max_position_embeddings", model.get("max_position_embeddings")
    given = {name: value for name, value in rope.items() if value is not None}
    given |= {"truncate": False} if rope.get("truncate", True) is None else {}  # of all but this null is the default
    found = {length: positions} | given
    found |= {length: config[length]} if config.get(length) is not None else {}  # it counts more than inside of rope's
    told = {ours: found[name] for ours, name in _PARAMETERS[kind].items() if name in found}
    if kind == "dynamic":
        told[length] = positions  # beyond which transformers raises the base, whatever else is there
    if kind == "yarn" and "attention_factor" not in given and _are_numbers(*_mscales(rope), given.get("factor")):
        told["yarn_attention_factor"] = concentration(given["factor"], *_mscales(rope))
    return {"use_rope_scaling": True, "rope_scaling_type": kind} | told


def _mscales(rope: Mapping[str, Any]) -> tuple[Any, Any] | tuple[()]:
    """Return mscale and mscale_all_dim, which transformers reads where both are there and not 0."""
    one, other = (rope.get(name) for name in _MSCALES)
    return (one, other) if one and other else ()


def _are_numbers(*values: object) -> bool:
    return len(values) > 1 and all(isinstance(value, int | float) for value in values)


def refused_rope(config: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a recipe cannot say of rope, with the setting of ours that replaces it."""
    rope = rope_of(config)
    kind = _type_of(rope)
    if odd := [name for name in _SECTIONS if not isinstance(config.get(name) or {}, dict)]:
        yield f"{odd[0]} {shown(config[odd[0]])}"
    elif any(isinstance(value, dict) for value in rope.values()):
        yield "rope_parameters that differ between layers"
    elif given.get("use_rope_scaling") is not False:
        yield from _refused_scaling(kind, rope, given)
    for ours, names in (("rotary_base", BASE), ("rotary_percent", PART)):
        told = [place[name] for place in (rope, config) for name in names if place.get(name) is not None]
        if any(value != told[0] for value in told) and ours not in given:
            yield f"{names[0]} {' and '.join(map(shown, told))} (model.{ours})"


def _refused_scaling(kind: Any, rope: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[str]:
    if kind == "default":
        return
    if not isinstance(kind, str) or kind not in _PARAMETERS:
        if "use_rope_scaling" not in given:
            yield f"rope_type {shown(kind)} (model.use_rope_scaling)"
        return
    for ours, name in _PARAMETERS[kind].items():
        if ours in _NEEDED and rope.get(name) is None and ours not in given:
            yield f"rope_type {kind} without {name} (model.{ours})"
    mscales = _mscales(rope) if kind == "yarn" and rope.get("attention_factor") is None else ()
    if mscales and not _are_numbers(*mscales) and "yarn_attention_factor" not in given:
        yield f"mscale {shown(mscales[0])} and mscale_all_dim {shown(mscales[1])} (model.yarn_attention_factor)"


def written_rope(model: ModelSection, more: dict[str, Any]) -> dict[str, Any]:
    """Return rope's settings as transformers 5 reads them, and its scaling also as 4 does.

    transformers' dynamic type raises the base beyond max_position_embeddings, and for the length of each text: for
    those of seq_length tokens, and those that are not longer than the original length, the model is the same.
    """
    if not model.use_rope_scaling:
        return {"rope_parameters": {"rope_type": "default", "rope_theta": model.rotary_base, **more}}
    kind = model.rope_scaling_type
    values = {name: getattr(model, ours) for ours, name in _PARAMETERS[kind].items()}
    left_out = {"attention_factor": None, "truncate": True}  # transformers' defaults; older ones do not know truncate
    values = {name: value for name, value in values.items() if name not in left_out or value != left_out[name]}
    scaling: dict[str, Any] = {"rope_type": kind, **values}
    found = {"rope_parameters": {**scaling, "rope_theta": model.rotary_base, **more}, "rope_scaling": scaling}
    positions = {"max_position_embeddings": model.original_max_position_embeddings}
    return found | (positions if kind == "dynamic" else {})
