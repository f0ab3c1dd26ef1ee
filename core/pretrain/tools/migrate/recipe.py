"""A recipe that loads, made of translated settings."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from pretrain.errors import MigrateError, RecipeError
from pretrain.recipe.document import Document, apply_override
from pretrain.recipe.load import make_effective, make_recipe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pretrain.recipe import Recipe
    from pretrain.recipe.problem import Problem


@dataclass(frozen=True, slots=True)
class MadeRecipe:
    """A recipe of settings."""

    recipe: Recipe  # complete
    data: dict[str, dict[str, object]]  # its sections, without what equals a default
    idle: tuple[Problem, ...]  # keys that were left out since they have no effect in it
    overridden: frozenset[str]  # keys that --set gave

    @property
    def written(self) -> frozenset[str]:
        """Return the keys that stand in the recipe."""
        return frozenset(_leaves(self.data))


def made_recipe(
    values: Mapping[str, object], places: Mapping[str, str], source: str, overrides: Sequence[str]
) -> MadeRecipe:
    """Make a recipe of keys, and leave out those that it has by default."""
    document = Document(source, {})
    for path, value in values.items():
        document.give(path, copy.deepcopy(value), places.get(path, source))
        document.places[tuple(path.split(".")[:1])] = source  # a missing key is not of the section's first line
    for override in overrides:
        apply_override(document, override)
    try:
        recipe, idle = make_effective(document)
    except RecipeError as error:
        msg = f"{error}\nChange the source, or give --set SECTION.KEY=VALUE."
        raise MigrateError(msg) from error
    for path in list(_leaves(document.data)):
        if path not in document.overridden:
            _drop_default(document, path, recipe)
    _drop_empty(document.data)
    return MadeRecipe(recipe, document.data, tuple(idle), frozenset(document.overridden))


def _leaves(data: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _drop_default(document: Document, path: str, recipe: Recipe) -> None:
    value = document.value(path)
    document.remove(path)
    try:
        same = make_recipe(document.data, source=document.source) == recipe
    except RecipeError:
        same = False
    if not same:
        document.give(path, value, document.source)


def _drop_empty(data: dict[str, object]) -> None:
    for key, value in list(data.items()):
        if isinstance(value, dict):
            _drop_empty(value)
            if not value:
                del data[key]


def written_recipe(data: dict[str, Any], comments: Mapping[str, str], head: Sequence[str]) -> str:
    """Return the text of a recipe."""
    lines = [f"# {line}".rstrip() for line in head]
    for number, (section, inner) in enumerate(data.items()):
        lines += [""] * bool(number) + list(_written(section, inner, section, comments, 0))
    return "\n".join(lines) + "\n"


def _written(key: str, value: Any, path: str, comments: Mapping[str, str], depth: int) -> Iterator[str]:
    indent = "  " * depth
    comment = f" # {comments[path]}" if comments.get(path) else ""
    if isinstance(value, dict):
        yield f"{indent}{key}:{comment}"
        for name, inner in value.items():
            yield from _written(name, inner, f"{path}.{name}", comments, depth + 1)
    elif isinstance(value, list) and any(isinstance(part, dict) for part in value):
        yield f"{indent}{key}:{comment}"
        for part in value:
            yield f"{indent}  - {_flow(part)}"
    else:
        yield f"{indent}{key}: {_flow(value)}{comment}"


def _flow(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**9, sort_keys=False)
    return text.removesuffix("\n").removesuffix("...").removesuffix("\n")
