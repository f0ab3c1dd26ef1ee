"""YAML text as GPT-NeoX reads it, with the line of each key."""

# `NeoXArgs.from_ymls` takes PyYAML's FullLoader; the reader of recipes is stricter, and flattens less.

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

from pretrain.errors import MigrateError
from pretrain.tools.migrate.setting import Setting, SourceLine
from pretrain.tools.migrate.sources.files import MigrateSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MERGE = "tag:yaml.org,2002:merge"
_DEEPEST = 20
_MOST = 20_000
"""Nodes of a file: nested aliases of a few lines would become gigabytes."""


class YamlBlock(dict[str, Any]):
    """Mapping of a YAML file that knows where its keys are."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, SourceLine] = {}  # of the keys


class _Loader(yaml.SafeLoader):
    """PyYAML's loader, which reads 1e-4 as a number too: GPT-NeoX itself stops at the text."""


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+[eE][-+]?\d+$"), list("-+0123456789"))


def read_block(text: str, source: str) -> YamlBlock:
    """Read a file's text: YAML, or JSON with comments and trailing commas, which is YAML too."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise MigrateError(_refused(source, 0 if node is None else node.start_mark.line + 1, "it has no keys"))
        return _Reader(loader, source).block(node, 0)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        why = error.problem or error.context or "it cannot be read"
        raise MigrateError(_refused(source, 0 if mark is None else mark.line + 1, why)) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        why = str(error).splitlines()[0]
        raise MigrateError(_refused(source, 0, why)) from error


def _refused(source: str, line: int, why: str) -> str:
    return f"{SourceLine(source, line)}: this is not YAML of GPT-NeoX: {why}.\nGive a file such as its configs/20B.yml."


class _Reader:
    def __init__(self, loader: _Loader, source: str) -> None:
        self.loader, self.source, self.left = loader, source, _MOST

    def block(self, node: yaml.MappingNode, depth: int) -> YamlBlock:
        """Return a mapping; a key with two values is an error, of which PyYAML would take the last."""
        found, merged = YamlBlock(), list[YamlBlock]()
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                merged += self._merged(value_node, depth + 1)
                continue
            key, place = self._value(key_node, depth), SourceLine(self.source, key_node.start_mark.line + 1)
            if not isinstance(key, str):
                raise MigrateError(_refused(self.source, place.line, f"the key {key!r} is not a word"))
            value = self._value(value_node, depth + 1)
            if key in found and (found[key] != value or isinstance(value, dict)):
                msg = f"{place}: {key} is given twice, in line {found.places[key].line} too.\nRemove one of them."
                raise MigrateError(msg)
            found[key], found.places[key] = value, place
        for other in merged:
            for key in other.keys() - found.keys():
                found[key], found.places[key] = other[key], other.places[key]
        return found

    def _merged(self, node: yaml.Node, depth: int) -> list[YamlBlock]:
        """Return the mappings of a "<<", whose keys yield to those around it."""
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if not all(isinstance(each, yaml.MappingNode) for each in nodes):
            raise MigrateError(_refused(self.source, node.start_mark.line + 1, "<< takes mappings"))
        return [block for block in (self._value(each, depth) for each in nodes) if isinstance(block, YamlBlock)]

    def _value(self, node: yaml.Node, depth: int) -> Any:
        self.left -= 1
        if depth > _DEEPEST or self.left < 0:
            raise MigrateError(_refused(self.source, node.start_mark.line + 1, "it has too many nested values"))
        if isinstance(node, yaml.MappingNode):
            return self.block(node, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, depth + 1) for item in node.value]
        return self.loader.construct_object(node)


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


def read_megatron_yaml(name: str, text: str, defined: Mapping[str, str]) -> MigrateSource:
    """Read a file for --yaml-cfg; its settings have the names of flags, and `defined` is for ${NAME} in it."""
    data = read_block(text, name)
    settings: dict[str, Setting] = {}
    for setting in _settings(data, defined):
        if setting.name in settings:
            first = settings[setting.name]
            msg = f"{setting.place}: {setting.written} is given in {first.place} too.\nRemove one of them."
            raise MigrateError(msg)
        settings[setting.name] = setting
    _check_activation(name, settings)
    return MigrateSource(name, "megatron_yaml", settings=settings)


def _settings(data: YamlBlock, defined: Mapping[str, str]) -> Iterator[Setting]:
    for key, value in data.items():
        if key in _SECTIONS and isinstance(value, YamlBlock):
            yield from _settings(value, defined)
        elif value is not None or key not in _OBJECTS:
            place = data.places[key]
            yield Setting(_FLAGS.get(key, key), _filled(value, place, defined), key, place)


def _filled(value: Any, place: SourceLine, defined: Mapping[str, str]) -> Any:
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
    """Check the activation, of which the program has three names."""
    chosen = settings.get("activation_func")
    if chosen is None or chosen.value not in _ACTIVATIONS:
        given = f"{chosen.place}: activation_func: {chosen.value}" if chosen else f"{name}: there is no activation_func"
        msg = f"{given}.\nAllowed are {', '.join(_ACTIVATIONS)}: give one of them."
        raise MigrateError(msg)
