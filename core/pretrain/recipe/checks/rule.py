"""Rules of keys that have an effect only while other keys have certain values."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.recipe.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Rule:
    """Keys that have an effect only while other keys have certain values."""

    keys: tuple[str, ...]  # "section.key", or a whole inner section such as "engine.zero"
    needs: str  # what the recipe must say for them to have an effect
    decided_by: tuple[str, ...]  # the keys that `holds` looks at
    holds: Callable[[Recipe], bool]


_WORDS = {"true": True, "false": False}


def only(condition: str, *keys: str, note: str = "") -> Rule:
    """Return the rule of keys that have an effect under a condition; the note is added to what they need.

    A condition is terms joined by "and": "section.key: value", "section.key: one or other", "section.key over 0", or
    "section.key", which is given and not false.
    """
    terms = [_term(term) for term in condition.split(" and ")]
    paths = tuple(path for path, _ in terms)
    return Rule(keys, condition + note, paths, lambda recipe: all(holds(recipe) for _, holds in terms))


def _term(term: str) -> tuple[str, Callable[[Recipe], bool]]:
    if " over " in term:
        path, _, least = term.partition(" over ")
        return path, lambda recipe: (attrgetter(path)(recipe) or 0) > int(least)
    path, _, listed = term.partition(": ")
    values = [int(value) if value.isdecimal() else _WORDS.get(value, value) for value in listed.split(" or ")]
    return path, lambda recipe: attrgetter(path)(recipe) in values if listed else bool(attrgetter(path)(recipe))
