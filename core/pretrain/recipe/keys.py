"""Every key of a recipe by its path."""

from __future__ import annotations

import functools
import typing
from typing import TYPE_CHECKING

from pretrain.recipe.recipe import Recipe
from pretrain.recipe.section import Section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo


@functools.cache
def keys_of_recipe() -> dict[str, str]:
    """Return the description of every section and key: "model", "model.num_layers", "data.corpus.source", ..."""
    return {path: field.description or "" for path, field in walk(Recipe)}


def walk(section: type[Section], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every key under a section with its path, outer ones first; items of lists are not entered."""
    for name, field in section.model_fields.items():
        yield f"{prefix}{name}", field
        inner = inner_section(field)
        if inner is not None:
            yield from walk(inner, f"{prefix}{name}.")


def inner_section(field: FieldInfo) -> type[Section] | None:
    """Return the section that the field holds, also if it may be null."""
    for option in (field.annotation, *typing.get_args(field.annotation)):
        if isinstance(option, type) and issubclass(option, Section):
            return option
    return None
