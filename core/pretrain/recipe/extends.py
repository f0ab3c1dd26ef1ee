"""Recipes that extend others: `extends: base.yml` at the top of a file, whose own keys are laid over the base's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrain.errors import RecipeError
from pretrain.recipe.document import DEEPEST, read_document, take_version
from pretrain.recipe.section import local_path, shown

if TYPE_CHECKING:
    from pretrain.recipe.document import Document, Keys

KEY = "extends"


def read_recipe(path: Path) -> Document:
    """Read a recipe's file, laid over the files that it extends; each key has the place where it was given.

    Sections are merged key by key; a list or any other value replaces the base's, and null unsets it. Raises
    RecipeError for a file that is missing, that is not YAML, or that extends itself.
    """
    *extending, document = _chain(path)
    for layer, own in enumerate(reversed(extending), start=1):
        document.source = own.source
        _lay_over(document, own, document.data, own.data, (), layer)
        document.leave_out_replaced()
    return document


def _chain(path: Path) -> list[Document]:
    """Return the file and those that it extends, one after the other."""
    documents: list[Document] = []
    files: list[str] = []
    named_by = ""
    while True:
        if os.path.realpath(path) in files:
            circle = " -> ".join([*(document.source for document in documents), str(path)])
            msg = f"{named_by}: {KEY}: a recipe cannot extend itself: {circle}.\nRemove one `{KEY}` of these."
            raise RecipeError(msg)
        files.append(os.path.realpath(path))
        document = read_document(path, named_by)
        take_version(document)
        documents.append(document)
        base = _base_of(document)
        if base is None:
            return documents
        path, named_by = base, document.place((KEY,))


def _base_of(document: Document) -> Path | None:
    """Take out `extends`; return the path, which is relative to the file that gives it."""
    named = document.data.pop(KEY, None)
    if named is None:
        return None
    try:
        named = local_path(named)
        if not isinstance(named, str) or not named:
            msg = f"{shown(named)} is not the path of a recipe. One file can be named, which may extend another."
            raise ValueError(msg)
    except ValueError as error:
        msg = f"{document.place((KEY,))}: {KEY}: {error}"
        raise RecipeError(msg) from error
    return Path(document.source).parent / named


def _lay_over(
    document: Document, own: Document, into: dict[str, Any], data: dict[str, Any], around: Keys, layer: int
) -> None:
    """Lay the keys of a section of `own` over those of the document."""
    for key, value in data.items():
        keys = (*around, key)
        if isinstance(value, dict) and len(keys) < DEEPEST:
            if not isinstance(into.get(key), dict):
                into[key] = {}
            document.places[keys] = own.places[keys]
            _lay_over(document, own, into[key], value, keys, layer)
        else:
            if value is None and not around and isinstance(into.get(key), dict):
                raise _empty(own.places[keys], key, into[key])
            into[key] = value
            document.replace_places(keys, own.places)
            document.layers[".".join(keys)] = layer


def _empty(place: str, section: str, of_base: dict[str, Any]) -> RecipeError:
    msg = f"{place}: {section} is empty, which would unset all that is given below it: {', '.join(of_base)}.\n"
    return RecipeError(f"{msg}Delete the line to keep that, or unset keys one by one: {section}: {{KEY: null}}.")
