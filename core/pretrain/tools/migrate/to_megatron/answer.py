"""Answers to the question what a key of a recipe is among Megatron-LM's arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pretrain.recipe import Recipe

Words = tuple[str, ...]
"""A flag with its values."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Flags that say the same as a key, and what they leave out.

    Attributes:
        flags: to be written; none where Megatron-LM's defaults say the same, or where nothing does.
        change: what is different there, a sentence without its period; empty if nothing is.
    """

    flags: tuple[Words, ...] = ()
    change: str = ""


NOTHING = Answer()
"""The answer for a key whose value Megatron-LM has without a flag."""

Function = Callable[[Recipe], Answer]
