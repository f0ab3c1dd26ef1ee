"""Plain text in columns."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]], width: int = 100) -> list[str]:
    """Return rows as lines: every column as wide as its longest cell, the last one wrapped at `width`.

    Rows that do not fit beside the other columns keep at least 30 characters for the last one.
    """
    before = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    indent = sum(before) + 2 * len(before)
    lines: list[str] = []
    for row in rows:
        cells = "".join(f"{cell:<{size}}  " for cell, size in zip(row, before, strict=False))
        last = [part for line in row[-1].splitlines() for part in _wrap(line, max(30, width - indent))] or [""]
        lines += [(cells + last[0]).rstrip(), *(" " * indent + part for part in last[1:])]
    return lines


def indented(text: str, indent: int, width: int = 100) -> list[str]:
    """Return a paragraph as lines of at most `width` characters, indented, those after the first by two more."""
    first, *rest = _wrap(text, width - indent - 2) or [""]
    return [" " * indent + first, *(" " * (indent + 2) + line for line in rest)]


def _wrap(text: str, width: int) -> list[str]:
    # Names, paths and commands stay in one piece: users copy them.
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
