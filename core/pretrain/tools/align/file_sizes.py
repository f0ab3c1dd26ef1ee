"""Sizes of a recording's files, by which one that is cut off, or was copied in part, is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

RANK = "rank.json"
"""File of a rank that is written last, and lists the others."""


def file_sizes(folder: Path, below: Path) -> dict[str, int]:
    """Return the size of each file below a folder of a recording, in bytes, by its path in the recording."""
    return {
        str(file.relative_to(folder)): file.stat().st_size
        for file in sorted(below.rglob("*"))
        if file.is_file() and file.name != RANK
    }


def damaged_file(folder: Path, sizes: Iterable[Mapping[str, int]]) -> str:
    """Return the first listed file that is missing or has another size; "" if there is none."""
    for listed in sizes:
        for name, size in listed.items():
            file = folder / name
            if not file.is_file() or file.stat().st_size != size:
                return name
    return ""
