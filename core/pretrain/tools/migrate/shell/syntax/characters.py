"""Characters between expansions: backslashes, and what $'...' stands for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.tools.migrate.shell.spans import Text
from pretrain.tools.migrate.shell.syntax.tree import Literal, Unknown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretrain.tools.migrate.shell.spans import Written
    from pretrain.tools.migrate.shell.syntax.tree import Part

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "v": "\v"}
_ANSI = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|([0-7]{1,3})|(.))", re.DOTALL)
_NOT_READ = re.compile(r"\\[cuU]|\\x\{|\\0?00(?![1-7])|\\x00?(?![0-9a-fA-F])")


@dataclass(frozen=True, slots=True)
class Context:
    """Surroundings of characters.

    Attributes:
        escaped: what a backslash is taken off of; None for everything, as outside of quotes.
        strips: whether tabs that begin a line are left out, as after <<-.
    """

    escaped: str | None
    strips: bool = False

    @property
    def is_quoted(self) -> bool:
        """Return whether blanks and single quotes are characters."""
        return self.escaped is not None


PLAIN = Context(None)
"""Outside of quotes."""
QUOTED = Context('$`"\\')
"""In double quotes."""
DEFAULT = Context('$`"\\}')
"""In ${NAME:-...} in double quotes."""
DOCUMENT = Context("$`\\")
"""In here-documents, and in arithmetic."""
INDENTED = Context("$`\\", strips=True)
"""In here-documents after <<-."""


def characters(written: Written, start: int, end: int, context: Context) -> Iterator[Part]:
    """Yield what the characters between two positions stand for, which hold no expansion but holes."""
    text, first, at = written.text, start, start
    while at < end:
        hole = written.hole(at)
        is_indent = context.strips and text[at] == "\t" and text[at - 1] == "\n"
        if hole is None and text[at] != "\\" and not is_indent:
            at += 1
            continue
        if first < at:
            yield Literal(written.between(first, at), context.is_quoted)
        if hole is not None:
            yield Unknown(hole)
            at += 1
        elif is_indent:
            at += _tabs(text, at, end)
        else:
            yield from _escaped(written, at, end, context)
            at += 2
            at += _tabs(text, at, end) if context.strips and text[at - 1 : at] == "\n" else 0
        first = at
    if first < end:
        yield Literal(written.between(first, end), context.is_quoted)


def _tabs(text: str, start: int, end: int) -> int:
    return len(text[start:end]) - len(text[start:end].lstrip("\t"))


def _escaped(written: Written, start: int, end: int, context: Context) -> Iterator[Literal]:
    following = written.text[start + 1 : min(start + 2, end)]
    if following == "\n":
        return
    keeps = not following or (context.escaped is not None and following not in context.escaped)
    yield Literal(written.between(start if keeps else start + 1, min(start + 2, end)), quoted=True)


def ansi(inside: str) -> str | None:
    """Return what the inside of $'...' stands for; None for forms that are not read."""
    return None if _NOT_READ.search(inside) else _ANSI.sub(_ansi_value, inside)


def _ansi_value(escape: re.Match[str]) -> str:
    if escape[1] or escape[2]:
        return chr(int(escape[1], 16) if escape[1] else int(escape[2], 8) & 0xFF)
    return _ESCAPES.get(escape[3], escape[3] if escape[3] in "\\'\"?" else escape[0])


def without_escapes(written: Written, start: int, end: int, *, is_quoted: bool) -> Text:
    """Return the inside of backquotes as the shell in them reads it."""
    found, position = Text(), start
    while position < end:
        if written.text[position] == "\\" and written.text[position + 1 : position + 2] in ("\\`$" + '"' * is_quoted):
            position += 1
        found += written.between(position, position + 1)
        position += 1
    return found
