"""Words of a text of arguments, split as a shell does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pretrain.errors import MigrateError
from pretrain.tools.migrate.setting import RuntimeValue, SourceLine, Word

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_PIECES = r"""(?P<blank>[ \t\r\n]+)
    |(?P<joint>\\\r?\n)
    |(?P<late>\\[ \t]+(?:\r?\n|\Z))
    |(?P<single>'[^']*')
    |(?P<double>"(?:[^"\\]|\\.)*")
    |(?P<escape>\\.)
    |(?P<plain>[^ \t\r\n\\'"]+)"""
_INSIDE = re.compile(_PIECES, re.VERBOSE | re.DOTALL)
_PIECE = re.compile(r"(?P<comment>\#[^\n]*)|" + _PIECES, re.VERBOSE | re.DOTALL)
_ESCAPED = re.compile(r'\\([\\"$`]|\n)')
_OPERATORS = ";|&<>()`"


def split_words(name: str, text: str, defined: Mapping[str, str], *, lines: bool = True) -> tuple[Word, ...]:
    """Split arguments as a shell does; variables that are not defined are asked for.

    Args:
        name: of the text, for places.
        text: the arguments; comments and escaped line ends are skipped.
        defined: values of variables.
        lines: whether places have a line.
    """
    words: list[Word] = []
    texts: list[str] = []
    asked: list[RuntimeValue] = []
    start = SourceLine(name)
    for kind, content, place in _pieces(name, text, lines=lines):
        if kind == "blank":
            words += _word(texts, start, asked)
            texts, asked = [], []
            continue
        start = start if texts else place
        value = _value(kind, content, place, defined, asked)
        texts += [value] if value or asked or kind != "plain" else []  # a shell drops an empty variable
    return (*words, *_word(texts, start, asked))


def _word(texts: list[str], place: SourceLine, asked: list[RuntimeValue]) -> list[Word]:
    return [Word("".join(texts), place, tuple(asked))] if texts else []


def _pieces(name: str, text: str, *, lines: bool) -> Iterator[tuple[str, str, SourceLine]]:
    """Yield kind, content and place of each piece; comments and escaped line ends are left out."""
    position, line, inside = 0, 1, False
    while position < len(text):
        place = SourceLine(name, line if lines else 0)
        piece = (_INSIDE if inside else _PIECE).match(text, position)
        if piece is None or piece.lastgroup == "late":
            raise MigrateError(_incomplete(place, late=piece is not None))
        kind, content = str(piece.lastgroup), piece[0]
        position, line = piece.end(), line + content.count("\n")
        if kind not in {"comment", "joint"}:
            inside = kind != "blank"
            yield kind, content, place


def _incomplete(place: SourceLine, *, late: bool) -> str:
    if late:
        return f"{place}: blanks follow the backslash at the end of this line.\nRemove them: a shell would stop here."
    return f"{place}: a quote or a backslash has no end.\nComplete it."


def _value(kind: str, content: str, place: SourceLine, defined: Mapping[str, str], asked: list[RuntimeValue]) -> str:
    if kind == "single":
        return content[1:-1]
    if kind == "escape":
        return content[1:]
    if kind == "plain" and any(sign in content for sign in _OPERATORS):
        msg = f"{place}: '{content}' is not an argument.\nGive arguments alone, or a whole script; put signs in quotes."
        raise MigrateError(msg)
    if kind == "plain":
        filled = _filled(content, place, defined, asked)
        if filled.split() not in ([], [filled]):
            msg = f"{place}: '{content}' is several words, '{filled}'.\nPut it in quotes, or write the words."
            raise MigrateError(msg)
        return filled
    parts = re.split(r'(\\[\\"$`\n])', content[1:-1])
    return "".join(
        _ESCAPED.sub(lambda found: found[1].replace("\n", ""), part)
        if index % 2
        else _filled(part, place, defined, asked)
        for index, part in enumerate(parts)
    )


def _filled(text: str, place: SourceLine, defined: Mapping[str, str], asked: list[RuntimeValue]) -> str:
    """Return the text with its variables' values; one that is not known becomes empty, and is asked for."""
    if re.search(r"\$[({]|`", _VARIABLE.sub("", text)):
        msg = f"{place}: '{text}' is worked out by a shell.\nWrite its value, or give the whole script."
        raise MigrateError(msg)

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in defined:
            asked.append(RuntimeValue(name, place, found[0]))
        return defined.get(name, "")

    return _VARIABLE.sub(value, text)
