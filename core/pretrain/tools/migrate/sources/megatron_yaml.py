"""A YAML file for Megatron-LM's --yaml-cfg (megatron/training/yaml_arguments.py)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pretrain.errors import MigrateError
from pretrain.tools.migrate.setting import Setting
from pretrain.tools.migrate.sources.neox_yaml import Block, read_block
from pretrain.tools.migrate.sources.source import Source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pretrain.tools.migrate.setting import Place

_SECTIONS = ("language_model", "model_parallel")
"""`core_transformer_config_from_yaml` joins them; everything else stands at the top."""

_FLAGS = {"num_moe_experts": "num_experts", "layernorm_zero_centered_gamma": "apply_layernorm_1p"}
"""Names of `TransformerConfig` for which the flag has another one, with the same values."""

_ACTIVATIONS = ("swiglu", "squaredrelu", "gelu")
"""Values of activation_func (core_transformer_config_from_yaml); the flags swiglu and the like do not count there."""

_OBJECTS = (
    *("timers", "finalize_model_grads_func", "grad_scale_func", "no_sync_func", "grad_sync_func", "param_sync_func"),
    *("params_dtype", "pipeline_dtype", "autocast_dtype", "_cpu_offloading_context"),
)
"""Objects that Megatron-LM itself puts there; a file has null."""


def is_megatron_yaml(data: Mapping[Any, Any]) -> bool:
    """Return whether the content of a YAML file has a section of Megatron-LM's."""
    return any(isinstance(data.get(section), dict) for section in _SECTIONS)


def read_megatron_yaml(name: str, text: str, defined: Mapping[str, str]) -> Source:
    """Read a file.

    Args:
        name: the file, as the user named it.
        text: its content.
        defined: values for ${NAME} in it.

    Returns:
        its settings, with the names that flags have.

    Raises:
        MigrateError: it is not YAML, gives a name twice, or needs a value that is not defined.
    """
    data = read_block(text, name)
    settings: dict[str, Setting] = {}
    for setting in _settings(data, defined):
        if setting.name in settings:
            first = settings[setting.name]
            msg = f"{setting.place}: {setting.written} is given in {first.place} too.\nRemove one of them."
            raise MigrateError(msg)
        settings[setting.name] = setting
    _check_activation(name, settings)
    return Source(name, "megatron_yaml", settings=settings)


def _settings(data: Block, defined: Mapping[str, str]) -> Iterator[Setting]:
    for key, value in data.items():
        if key in _SECTIONS and isinstance(value, Block):
            yield from _settings(value, defined)
        elif value is not None or key not in _OBJECTS:
            place = data.places[key]
            yield Setting(_FLAGS.get(key, key), _filled(value, place, defined), key, place)


def _filled(value: Any, place: Place, defined: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_filled(item, place, defined) for item in value]
    if not isinstance(value, str):
        return value
    missing = [name for name in re.findall(r"\$\{(.*?)\}", value) if name not in defined]
    if missing:
        msg = f"{place}: {value}: ${{{missing[0]}}} is not known.\nGive --define {missing[0]}=..."
        raise MigrateError(msg)
    return re.sub(r"\$\{(.*?)\}", lambda found: defined[found[1]], value)


def _check_activation(name: str, settings: Mapping[str, Setting]) -> None:
    """Check the activation, of which the program has three names.

    Raises:
        MigrateError: there is none, or another.
    """
    chosen = settings.get("activation_func")
    if chosen is None or chosen.value not in _ACTIVATIONS:
        given = f"{chosen.place}: activation_func: {chosen.value}" if chosen else f"{name}: there is no activation_func"
        msg = f"{given}.\nAllowed are {', '.join(_ACTIVATIONS)}: give one of them."
        raise MigrateError(msg)
