"""A recipe's YAML as plain data with the line of each key, and overrides of it: `--set section.key=value`."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

import yaml

from pretrain import __version__
from pretrain.errors import RecipeError, did_you_mean
from pretrain.recipe.section import shown

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


Keys = tuple[str, ...]

DEEPEST = 4
"""data.blend.0.weight. PyYAML builds deeper nodes, once for all aliases of a node; otherwise a few lines of
nested aliases would become gigabytes."""

_TIME = "tag:yaml.org,2002:timestamp"
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


FORMAT = 1
"""The newest format of a recipe that is read, the top key `version`. It grows when a key changes its meaning."""

BASE, OVERRIDES = 0, sys.maxsize
"""Layers of a document: the file that extends no other, or plain data; and --set. Files between have 1, 2, ..."""


class RecipeLoader(yaml.SafeLoader):
    """Reads 1:30, which YAML 1.1 takes for 90, and dates as text."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> Any:
        """Return the tag of a node that has none."""
        tag = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        return self.DEFAULT_SCALAR_TAG if tag == _TIME or (tag in _NUMBERS and ":" in value) else tag


@dataclass(slots=True)
class Document:
    """Plain data and where each of its keys was given."""

    source: str
    data: dict[str, Any]
    places: dict[Keys, str] = field(default_factory=dict)  # "recipes/x.yml:12" or "--set model.num_layers=2", by key
    layers: dict[str, int] = field(default_factory=dict)  # of "section.key" that did not come with the BASE
    left_out: dict[str, str] = field(default_factory=dict)  # reason for which a key that was given is not used

    @property
    def overridden(self) -> set[str]:
        """Return the keys "section.key" that overrides gave."""
        return {path for path, layer in self.layers.items() if layer == OVERRIDES}

    def layer(self, path: str) -> int:
        """Return the last layer that gave this key, a section around it, or a key inside it."""
        related = (
            layer
            for given, layer in self.layers.items()
            if f"{path}.".startswith(f"{given}.") or given.startswith(f"{path}.")
        )
        return max(related, default=BASE)

    def place(self, keys: Keys) -> str:
        """Return where the key, or else the nearest one around it, was given."""
        while keys and keys not in self.places:
            keys = keys[:-1]
        return self.places.get(keys, self.source)

    def value(self, path: str) -> Any:
        """Return the value of the key "section.key"; None if it was not given."""
        inner: Any = self.data
        for key in path.split("."):
            inner = inner.get(key) if isinstance(inner, dict) else None
        return inner

    def give(self, path: str, value: Any, place: str) -> None:
        """Set the key "section.key"; nothing happens if a section around it has another type."""
        inner, keys = self.data, tuple(path.split("."))
        for depth, section in enumerate(keys[:-1], start=1):
            if inner.get(section) is None:
                inner[section] = {}
                self.places[keys[:depth]] = place
            if not isinstance(inner[section], dict):
                return
            inner = inner[section]
        inner[keys[-1]] = value
        self.places[keys] = place

    def remove(self, path: str) -> None:
        """Take out the key "section.key", if it is there."""
        *sections, key = path.split(".")
        inner: Any = self.data
        for section in sections:
            inner = inner.get(section, {})
        inner.pop(key, None)

    def replace_places(self, keys: Keys, places: Mapping[Keys, str]) -> None:
        """Forget where a key, and all inside it, was given; take the other places of it."""
        self.left_out.pop(".".join(keys), None)
        for known in [known for known in self.places if known[: len(keys)] == keys]:
            del self.places[known]
        self.places |= {known: place for known, place in places.items() if known[: len(keys)] == keys}

    def leave_out_replaced(self) -> None:
        """Take out the alternatives of a key that an earlier layer gave: train_samples replaces train_iters."""
        for group in _ALTERNATIVES:
            given = [path for path in group if self.value(path) is not None]
            last = max(given, key=self.layer, default="")
            for path in given:
                if self.layer(path) < self.layer(last):
                    self.left_out[path] = f"{last} replaces it"
                    self.remove(path)
        self._settle_tensorboard()

    def _settle_tensorboard(self) -> None:
        """Read logging.tensorboard, the key of before, as a change of logging.loggers, which a later layer replaces."""
        old, new = "logging.tensorboard", "logging.loggers"
        if self.value(old) is None:
            return
        if self.layer(old) < self.layer(new):
            self.left_out[old] = f"{new} replaces it"
            self.remove(old)
        elif self.value(new) is None or self.layer(old) > self.layer(new):
            self.layers[new] = self.layer(old)
            self.places[tuple(new.split("."))] = self.place(tuple(old.split(".")))


def read_document(path: Path, named_by: str = "") -> Document:
    """Read a YAML file; raises RecipeError with file and line unless it is a mapping of unique keys."""
    # `named_by` is the place of the `extends` that names the file, and "" if the user names it.
    document = Document(str(path), {})
    try:
        loader = RecipeLoader(_read_text(path, named_by))
        node = loader.get_single_node()
        if node is not None:
            document.data = _plain(loader, node, document, ())
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        msg = f"{path}{line}: this is not YAML: {error.problem or error.context}."
        raise RecipeError(msg) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a number of thousands of digits
        msg = f"{path}: this is not YAML: {error}"
        raise RecipeError(msg) from error
    return document


def _read_text(path: Path, named_by: str) -> str:
    named = f"{named_by}: extends: " if named_by else ""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        near = did_you_mean(path.name, (other.name for other in path.parent.glob("*.y*ml")))
        remedy = "The path is relative to the file that extends." if named else "recipes/ has some."
        msg = f"{named}{path}: there is no such recipe.{near}\nGive the path of a YAML file. {remedy}"
        raise RecipeError(msg) from error
    except IsADirectoryError as error:
        own = path / "recipe.yml"
        remedy = f"It is a run's directory: give {own}." if own.exists() else "Give the path of a YAML file."
        msg = f"{named}{path}: this is a directory, not a recipe.\n{remedy}"
        raise RecipeError(msg) from error
    except (OSError, UnicodeDecodeError) as error:
        msg = (
            f"{named}{path}: this recipe cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}."
        )
        raise RecipeError(msg) from error


def _plain(loader: yaml.SafeLoader, node: yaml.Node, document: Document, keys: Keys) -> Any:
    """Turn a node into data; mappings and lists are walked for their lines, the rest is PyYAML's."""
    if len(keys) > DEEPEST:
        return loader.construct_object(node, deep=True)
    if isinstance(node, yaml.MappingNode) and node.tag == loader.DEFAULT_MAPPING_TAG:
        return _mapping(loader, node, document, keys)
    if not keys:
        kind = "a list" if isinstance(node, yaml.SequenceNode) else "a text"
        msg = f"{document.source}: a recipe is a mapping of sections (model:, train:, ...), not {kind}."
        raise RecipeError(msg)
    if isinstance(node, yaml.SequenceNode) and node.tag == loader.DEFAULT_SEQUENCE_TAG:
        for index, item in enumerate(node.value):
            document.places[*keys, str(index)] = _place(document, item)
        return [_plain(loader, item, document, (*keys, str(index))) for index, item in enumerate(node.value)]
    return loader.construct_object(node, deep=True)


def take_version(document: Document) -> None:
    """Take out `version`; raises RecipeError for a format that is not read here. Without the key it is 1."""
    given = document.data.pop("version", None)
    if given is None:
        return
    place = document.place(("version",))
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        msg = f"{place}: version: {shown(given)} is not the number of a format; the newest is {FORMAT}.\n"
        msg += "Without the key it is 1."
        raise RecipeError(msg)
    if given > FORMAT:
        msg = f"{place}: this recipe is of format {given}; this pretrain, {__version__}, reads up to {FORMAT}.\n"
        msg += "Update pretrain."
        raise RecipeError(msg)


def _place(document: Document, node: yaml.Node) -> str:
    return f"{document.source}:{node.start_mark.line + 1}"


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode, document: Document, keys: Keys) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key_node, value_node in node.value:
        place = _place(document, key_node)
        key = str(key_node.value)
        if key in data:
            msg = f"{place}: {'.'.join((*keys, key))} is given twice; remove one."
            raise RecipeError(msg)
        document.places[*keys, key] = place
        data[key] = _plain(loader, value_node, document, (*keys, key))
    return data


_ALTERNATIVES = (
    ("train.train_iters", "train.train_samples"),
    ("data.path", "data.blend"),
    *product(("data.path", "data.blend"), ("data.train_data_path", "data.valid_data_path", "data.test_data_path")),
    ("schedule.lr_warmup_iters", "schedule.lr_warmup_samples", "schedule.lr_warmup_fraction"),
    ("schedule.lr_decay_iters", "schedule.lr_decay_samples"),
    ("schedule.lr_wsd_decay_iters", "schedule.lr_wsd_decay_samples"),
)
"""Groups of alternative keys: one that an override or an extending file gives replaces the others before it."""


_LONG = 100


def apply_override(document: Document, override: str) -> None:
    """Put one override, "section.key=value", into the document; the value is YAML or JSON, null unsets a key."""
    path, equals, text = override.partition("=")
    path = path.strip()
    keys = tuple(path.split("."))
    place = f"--set {override}" if len(override) < _LONG else f"--set {path}=..."
    if not equals or not all(keys):
        msg = f"{place}: an override is section.key=value, for example --set model.num_layers=2."
        raise RecipeError(msg)
    try:
        value = _value(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a number of thousands of digits
        msg = f"{place}: the value is not YAML. Quote it: --set '{path}=\"...\"'."
        raise RecipeError(msg) from error
    inner = document.data
    for depth, key in enumerate(keys[:-1], start=1):  # a mapping replaces a whole section
        document.places.setdefault(keys[:depth], place)
        if not isinstance(inner.get(key), dict):
            inner[key] = {}
        inner = inner[key]
    inner[keys[-1]] = value
    document.replace_places(keys, {keys: place})
    document.layers[path] = OVERRIDES
    if path == "logging.loggers":  # the later one counts
        document.remove("logging.tensorboard")
    document.leave_out_replaced()


def _value(text: str) -> Any:
    """Read a value as JSON if it is JSON, since YAML refuses tabs; as YAML otherwise."""
    if text.lstrip().startswith(("{", "[")):
        with suppress(ValueError):
            return json.loads(text)
    return yaml.load(text, RecipeLoader)  # noqa: S506  a SafeLoader
