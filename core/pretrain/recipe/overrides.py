"""Overrides of a recipe: `--set section.key=value`."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import yaml

from pretrain.errors import RecipeError
from pretrain.recipe.document import RecipeLoader

if TYPE_CHECKING:
    from pretrain.recipe.document import Document

_ALTERNATIVES = (
    ("train.train_iters", "train.train_samples"),
    ("data.path", "data.blend"),
    ("schedule.lr_warmup_iters", "schedule.lr_warmup_samples", "schedule.lr_warmup_fraction"),
    ("schedule.lr_decay_iters", "schedule.lr_decay_samples"),
    ("schedule.lr_wsd_decay_iters", "schedule.lr_wsd_decay_samples"),
)
"""Groups of alternative keys: an override of one replaces the file's other."""


_LONG = 100


def apply_override(document: Document, override: str) -> None:
    """Put one override, "section.key=value", into the document.

    The value is YAML or JSON. null unsets a key; a mapping replaces a whole section ("recompute={granularity: full}").
    """
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
    for depth, key in enumerate(keys[:-1], start=1):
        document.places.setdefault(keys[:depth], place)
        if not isinstance(inner.get(key), dict):
            inner[key] = {}
        inner = inner[key]
    inner[keys[-1]] = value
    _drop_places(document, keys)
    document.places[keys] = place
    document.overridden.add(path)
    if value is not None:
        _replace_alternatives(document, path)


def _value(text: str) -> Any:
    """Read a value as JSON if it is JSON, since YAML refuses tabs; as YAML otherwise."""
    if text.lstrip().startswith(("{", "[")):
        with suppress(ValueError):
            return json.loads(text)
    return yaml.load(text, RecipeLoader)  # noqa: S506  a SafeLoader


def _drop_places(document: Document, keys: tuple[str, ...]) -> None:
    """Drop the places of keys that a mapping has replaced."""
    for known in [known for known in document.places if known[: len(keys)] == keys]:
        del document.places[known]


def _replace_alternatives(document: Document, path: str) -> None:
    for group in _ALTERNATIVES:
        if path in group:
            for other in set(group) - {path} - document.overridden:
                document.remove(other)
