"""Problem of a recipe."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """Problem of a recipe, shown as `file:line: path: text`.

    Attributes:
        path: the key, "section.key".
        text: what was given, what is allowed, what to do.
        switched_off_by: for a key without effect, the keys whose values decide that.
    """

    path: str
    text: str
    switched_off_by: tuple[str, ...] = ()
