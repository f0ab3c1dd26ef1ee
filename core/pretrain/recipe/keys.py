"""Keys of a recipe by path."""

from __future__ import annotations

import functools
import inspect
import typing
from typing import TYPE_CHECKING

from pretrain.recipe.recipe import Recipe
from pretrain.recipe.section import Section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo


@functools.cache
def keys_of_recipe() -> dict[str, str]:
    """Return the description of every section and key: "model", "model.num_layers", "data.blend.weight", ..."""
    return {path: description(field) for path, field in walk(Recipe)}


def description(field: FieldInfo) -> str:
    """Return the sentence of a key, or of the section that it is."""
    section = inner_section(field)
    return field.description or (inspect.getdoc(section) or "").partition("\n")[0]


def walk(section: type[Section], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every key under a section with its path, outer ones first."""
    for name, field in section.model_fields.items():
        yield f"{prefix}{name}", field
        inner = inner_section(field)
        if inner is not None:
            yield from walk(inner, f"{prefix}{name}.")


def inner_section(field: FieldInfo) -> type[Section] | None:
    """Return the section that the field holds, also if it may be null or is a list of them."""
    options = [field.annotation]
    for option in options:
        if isinstance(option, type) and not typing.get_args(option) and issubclass(option, Section):
            return option
        options.extend(typing.get_args(option))
    return None
