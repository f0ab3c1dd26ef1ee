"""Text whose characters know the line on which they were written, with holes for what only running a script tells."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pretrain.tools.migrate.setting import Asked, Place

if TYPE_CHECKING:
    from collections.abc import Iterable

HOLE = "\ufffc"
"""Stands for an unknown part where text is parsed."""

_UNNAMED = ("$", "`", "<", ">", "{")


@dataclass(frozen=True, slots=True)
class Span:
    """A run of characters written on one line, or a hole, which may stand for several words."""

    text: str
    place: Place
    asked: Asked | None = None
    is_many: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """A value: spans one after the other."""

    spans: tuple[Span, ...] = ()

    @property
    def is_known(self) -> bool:
        """Return whether nothing of it is asked for."""
        return not any(span.asked for span in self.spans)

    @property
    def text(self) -> str:
        """Known characters; a hole is empty."""
        return "".join(span.text for span in self.spans)

    @property
    def is_many(self) -> bool:
        """Return whether it may be several words, or none."""
        return any(span.is_many for span in self.spans)

    @property
    def asked(self) -> tuple[Asked, ...]:
        """Values that are not known, each once."""
        return tuple(dict.fromkeys(span.asked for span in self.spans if span.asked))

    def __add__(self, other: Text) -> Text:
        """Return both, one after the other."""
        return Text(self.spans + other.spans)

    def key(self) -> tuple[str, ...]:
        """Return what makes two texts the same value: their characters, and the names of their holes in place."""
        parts = [""]
        for span in self.spans:
            if span.asked:
                parts += [span.asked.name, ""]
            else:
                parts[-1] += span.text
        return tuple(parts)

    def __eq__(self, other: object) -> bool:
        """Compare values, not places."""
        return isinstance(other, Text) and self.key() == other.key()

    def __hash__(self) -> int:
        """Return a number that equal values share."""
        return hash(self.key())

    def named(self, name: str) -> Text:
        """Return the value as a variable's, under whose name $(hostname) and the like are asked for."""
        if self.is_known:
            return self
        return Text(tuple(_named(span, name) for span in self.spans))

    def without_last_newlines(self) -> Text:
        """Return the value as a command substitution gives it."""
        spans = list(self.spans)
        while spans and not spans[-1].asked:
            rest = spans[-1].text.rstrip("\n")
            if rest:
                spans[-1] = replace(spans[-1], text=rest)
                break
            spans.pop()
        return Text(tuple(spans))


def _named(span: Span, name: str) -> Span:
    if span.asked is None or not span.asked.name.startswith(_UNNAMED):
        return span
    return replace(span, asked=replace(span.asked, name=name))


def known(text: str, place: Place) -> Text:
    """Return a value that is written, or calculated, at a place."""
    return Text((Span(text, place),)) if text else Text()


def unknown(name: str, place: Place, why: str) -> Text:
    """Return a value that is asked for."""
    return Text((Span("", place, Asked(name, place, why)),))


def shortened(written: str) -> str:
    """Return what a script writes as one line of at most 60 characters."""
    shown = " ".join(written.split())
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


class Written:
    """Text to be parsed; every position has a place, and holes stand in it as one character each."""

    def __init__(self, spans: Iterable[Span], end: Place) -> None:
        """Join spans; `end` is the place of an empty text."""
        self.end = end
        self._spans = [span for span in spans if span.text or span.asked]
        pieces = [span.text or HOLE for span in self._spans]
        self.text = "".join(pieces)
        self._starts: list[int] = []
        position = 0
        for piece in pieces:
            self._starts.append(position)
            position += len(piece)

    @classmethod
    def of_file(cls, text: str, source: str) -> Written:
        """Return the text of a file."""
        lines = [f"{line}\n" for line in text.split("\n")]
        lines[-1] = lines[-1][:-1]
        spans = [Span(line, Place(source, number)) for number, line in enumerate(lines, 1)]
        return cls(spans, Place(source, 1))

    def place(self, position: int) -> Place:
        """Return where a character was written."""
        index = bisect_right(self._starts, position) - 1
        return self._spans[index].place if index >= 0 else self.end

    def hole(self, position: int) -> Asked | None:
        """Return what is unknown at a position, if it is a hole."""
        if self.text[position : position + 1] != HOLE:
            return None
        return self._spans[bisect_right(self._starts, position) - 1].asked

    def between(self, start: int, end: int) -> Text:
        """Return the value of the characters between two positions."""
        found = []
        index = max(bisect_right(self._starts, start) - 1, 0)
        while index < len(self._spans) and self._starts[index] < end:
            span, first = self._spans[index], self._starts[index]
            if span.asked:
                found.append(span)
            elif piece := span.text[max(start - first, 0) : end - first]:
                found.append(replace(span, text=piece))
            index += 1
        return Text(tuple(found))

    def part(self, start: int, end: int) -> Written:
        """Return a part of it as a text of its own."""
        return Written(self.between(start, end).spans, self.place(start))
