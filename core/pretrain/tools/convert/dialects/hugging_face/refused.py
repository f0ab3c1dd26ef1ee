"""Settings in config.json that change what a model computes, and that no model here has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.errors import CheckpointError
from pretrain.recipe.section import shown
from pretrain.tools.convert.formats.hugging_face_config import (
    KNOWN,
    NAMES,
    ROPE,
    SCALING,
    activation_key,
    rope_of,
    rope_type,
    settings_of_config,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_ONLY: dict[str, dict[str, bool]] = {
    "gpt2": {
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "add_cross_attention": False,
    },
    "gpt_neox": {"attention_bias": True},
}
"""By model_type: settings that must have this value, which is transformers' default."""

_KEY = "(model."
"""Before the setting of ours that replaces what is refused."""

_NEEDED = ("rope_scaling_factor", "rope_low_freq_factor", "rope_high_freq_factor")


def require_known(path: Path, config: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Require that our settings can express all that a config.json says of what the model computes.

    Args:
        path: of the config.json.
        config: what is in it.
        given: settings of the section `model` that replace those of the file.

    Raises:
        CheckpointError: they cannot; all that is too much is named.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in KNOWN:
        msg = f"{path} says model_type {shown(kind)}.\nModels of type {', '.join(KNOWN)} are read."
        raise CheckpointError(msg)
    if wrong := [*_of_kind(kind, config, given), *_rope(config, given), *_windows(kind, config, given)]:
        to_do = (
            "A setting of the file that does not matter to you is replaced by --set model.KEY=VALUE."
            if all(_KEY in each for each in wrong)
            else "Recipes have no such setting: it cannot be converted."
        )
        msg = f"{path} describes what no model here can be: {'; '.join(wrong)}.\n{to_do}"
        raise CheckpointError(msg)


def _of_kind(kind: str, config: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[str]:
    if "activation" not in settings_of_config(config) and "activation" not in given:
        key = activation_key(kind)
        yield f"{key} {shown(config[key])} (model.activation)"
    for name, value in _ONLY.get(kind, {}).items():
        if config.get(name, value) is not value:
            yield f"{name} {shown(config[name])}"
    biases = [config.get(name) or False for name in ("attention_bias", "mlp_bias")]
    if kind == "llama" and biases not in ([False] * 2, [True] * 2) and "add_bias_linear" not in given:
        yield f"attention_bias {shown(biases[0])} with mlp_bias {shown(biases[1])} (model.add_bias_linear)"
    if config.get("quantization_config"):
        yield "quantization_config (weights that are quantized)"


def _rope(config: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[str]:
    rope = rope_of(config)
    kind = rope_type(rope)
    if odd := [name for name in ROPE if not isinstance(config.get(name) or {}, dict)]:
        yield f"{odd[0]} {shown(config[odd[0]])}"
    elif any(isinstance(value, dict) for value in rope.values()):
        yield "rope_parameters that differ between layers"
    elif kind not in ("default", "llama3") and "use_rope_scaling" not in given:
        yield f"rope_type {shown(kind)} (model.use_rope_scaling)"
    elif kind == "llama3" and (missing := [name for name in _NEEDED if rope.get(SCALING[name]) is None]):
        yield from (f"rope_type llama3 without {SCALING[name]} (model.{name})" for name in missing if name not in given)
    for ours in ("rotary_base", "rotary_percent"):
        told = [place[name] for place in (rope, config) for name in NAMES[ours] if place.get(name) is not None]
        if any(value != told[0] for value in told) and ours not in given:
            yield f"{NAMES[ours][0]} {' and '.join(map(shown, told))} (model.{ours})"


def _windows(kind: str, config: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[str]:
    window = _window(kind, config)
    length = given.get("max_position_embeddings", settings_of_config(config).get("max_position_embeddings"))
    if window is not None and not (_are_ints(window, length) and window >= length):
        yield f"sliding_window {shown(window)} below {shown(length)} positions (model.max_position_embeddings)"


def _window(kind: str, config: Mapping[str, Any]) -> Any:
    """Return how many positions some layers see; None is all.

    Mistral's window holds for all layers, Qwen 2's with use_sliding_window from layer max_window_layers on. Layers of
    other kinds, of which a config has a list, see an unknown number.
    """
    layers = config.get("layer_types")
    first, number = config.get("max_window_layers", 28), config.get("num_hidden_layers")
    if isinstance(layers, list) and any(each != "full_attention" for each in layers):
        return config.get("sliding_window") or "of its own"
    if kind == "qwen2":
        is_used = config.get("use_sliding_window") and not isinstance(layers, list)
        return (
            config.get("sliding_window", 4096)
            if is_used and not (_are_ints(first, number) and first >= number)
            else None
        )
    return config.get("sliding_window", 4096) if kind == "mistral" else None


def _are_ints(*values: object) -> bool:
    return all(type(value) is int for value in values)
