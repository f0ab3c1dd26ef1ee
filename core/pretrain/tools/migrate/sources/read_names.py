"""Names of variables that a text reads, so that a definition of another name can be noticed."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_VARIABLE = re.compile(r"\$\{?[!#]?(\w+|@|\*|#)|\b([A-Za-z_]\w*)(?:\[[^]\n]*\])?\+?=|(?:-v|printenv)[ \t]+(\w+)")
_ARITHMETIC = re.compile(r"\(\(.*?\)\)|-(?:eq|ne|gt|ge|lt|le)\b[^\n]*|\blet\b[^\n]*|\[\[[^\n]*", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*")
_ALL_ARGUMENTS = re.compile(r"\$\{?[@*#]|\bshift\b|\bgetopts\b")
_SOURCED = re.compile(r"(?:^|[;&|({]|\bthen\b|\bdo\b)[ \t]*(?:source|\.)[ \t]+(\S+)", re.MULTILINE)
_LARGEST = 1_000_000
_MOST = 50
"""Files that are followed."""


def names_read(name: str, text: str, defined: Mapping[str, str]) -> frozenset[str]:
    """Return the names of variables and of arguments in a text, and in the files that it sources.

    Names are searched, not followed: one too many does no harm, but one too few would refuse a definition that counts.
    Where a sourced file is not found, all definitions count as read.

    Args:
        name: the text's file, for the folder of those that it sources.
        text: a script, a list of arguments, or YAML with ${NAME}.
        defined: definitions.
    """
    texts, complete = _texts(name, text)
    found = frozenset(one for each in texts for one in _names(each, defined))
    return found if complete else found | defined.keys()


def _names(text: str, defined: Mapping[str, str]) -> Iterator[str]:
    for groups in _VARIABLE.findall(text):
        yield from filter(None, groups)
    for arithmetic in _ARITHMETIC.findall(text):
        yield from _WORD.findall(arithmetic)
    yield from (name for name in defined if name.startswith("<") and name in text)  # a placeholder
    yield from (name for name in defined if re.search(rf"(?:\$\(|[`|])\s*{re.escape(name)}\b", text))  # a program
    numbers = [name for name in defined if name.isdecimal()]
    if _ALL_ARGUMENTS.search(text):
        yield from ("@", *numbers)
    elif re.search(r"\$\{?\d", text):
        yield "@"


def _texts(name: str, text: str) -> tuple[list[str], bool]:
    """Return a text with those that it sources, and whether they were found."""
    texts, seen, complete = [text], set[Path](), True
    for each in texts:
        for word in _SOURCED.findall(each):
            path = _found(name, word.strip("\"';"))
            complete = complete and path is not None and len(texts) < _MOST
            if path is not None and path not in seen and len(texts) < _MOST:
                seen.add(path)
                texts.append(path.read_text(encoding="utf-8", errors="replace"))
    return texts, complete


def _found(name: str, written: str) -> Path | None:
    """Return a file that a script sources; of a path with variables the last part alone is known."""
    folder = Path(name).parent
    parts = [written] if "$" not in written else []
    last = PurePosixPath(written).name
    parts += [last] if last and "$" not in last else []
    for path in (place / part for part in parts for place in (Path(), folder)):
        if path.is_file() and path.stat().st_size <= _LARGEST:
            return path
    return None
