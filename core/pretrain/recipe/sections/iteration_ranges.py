"""Lists of iterations in which a range is written 100-300."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator

from pretrain.recipe.section import as_number
from pretrain.recipe.shown import shown

if TYPE_CHECKING:
    from collections.abc import Iterable

_RANGE = re.compile(r"(\d+)-(\d+)")


def _entries(given: object) -> object:
    """Read a list, one entry alone, Megatron's form "2 100-300", or one with commas."""
    if isinstance(given, str):
        given = given.replace(",", " ").split()
    return tuple(_entry(entry) for entry in (given if isinstance(given, list | tuple) else [given]))


def _entry(given: object) -> int | str:
    number = as_number(given)
    if isinstance(number, int) and not isinstance(number, bool) and number > 0:
        return number
    found = _RANGE.fullmatch(given) if isinstance(given, str) else None
    if found is None or not 0 < int(found[1]) <= int(found[2]):
        msg = f"{shown(given)} is neither an iteration, from 1, nor a range of them, such as 100-300."
        raise ValueError(msg)
    return f"{int(found[1])}-{int(found[2])}"


Iterations = Annotated[tuple[int | str, ...], BeforeValidator(_entries)]


def ranges(entries: Iterable[int | str]) -> list[tuple[int, int]]:
    """Return the first and the last iteration of each entry."""
    found = []
    for entry in entries:
        first, _, last = str(entry).partition("-")
        found.append((int(first), int(last or first)))
    return found
