"""Conditions under which a key has an effect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.recipe.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Rule:
    """Keys that have an effect only while other keys have certain values.

    Attributes:
        keys: "section.key", or a whole inner section such as "engine.zero".
        needs: what the recipe must say for them to have an effect.
        decided_by: the keys that `holds` looks at.
        holds: whether the keys have an effect.
    """

    keys: tuple[str, ...]
    needs: str
    decided_by: tuple[str, ...]
    holds: Callable[[Recipe], bool]
