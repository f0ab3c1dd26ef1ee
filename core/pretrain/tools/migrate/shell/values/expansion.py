"""Words as bash makes them: variables put in, split at blanks, quotes removed."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pretrain.errors import MigrateError
from pretrain.tools.migrate.setting import Asked, Place, Word
from pretrain.tools.migrate.shell.spans import Span, Text, known
from pretrain.tools.migrate.shell.syntax.tree import Arithmetic, Literal, Parameter, Quotes, Substitution, Unknown
from pretrain.tools.migrate.shell.values import braces
from pretrain.tools.migrate.shell.values.parameters import Parameters
from pretrain.tools.migrate.shell.values.state import Arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pretrain.tools.migrate.shell.syntax.tree import Part, Parts, WordNode
    from pretrain.tools.migrate.shell.values.state import State

FILES = "names of files, which only the shell finds"
"""Why a word with * or ? is asked for."""

_FREQUENCY = re.compile(r"\[[01]\]\*\d+(?:\+\[[01]\]\*\d+)+")
"""Layers such as [0]*3+[1]*24, a pattern that fits no name of a file in practice."""

_BLANKS = re.compile(r"[ \t\n]+")
_TILDE = re.compile(r"~[^/:]*(?=[/:]|\Z)")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a word.

    Attributes:
        span: its characters, or a hole.
        quoted: whether quotes make it plain, and a word even if it is empty.
        split: whether blanks in it end words: what an expansion outside of quotes gave.
        ends: whether the word ends after it, as between the elements of "$@".
        absent: whether it is "$@" without elements, whose quotes make no word.
    """

    span: Span
    quoted: bool = False
    split: bool = False
    ends: bool = False
    absent: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    """A word of a command line, after all expansions.

    Attributes:
        text: its value; a hole that may be several words says so.
        place: where its first character is written.
        asked: values that are not known of it.
    """

    text: Text
    place: Place
    asked: tuple[Asked, ...] = ()

    @property
    def is_one(self) -> bool:
        """Return whether it surely is one word."""
        return not self.text.is_many

    @property
    def word(self) -> Word:
        """Return it as others see it."""
        return Word(self.text.text, self.place, self.asked)


def arguments_of(fields: Sequence[Field]) -> Arguments:
    """Return the arguments that words are, known up to one that may be several."""
    many = next((number for number, field in enumerate(fields) if not field.is_one), None)
    known_texts = tuple(field.text for field in fields[:many])
    return Arguments(known_texts, None if many is None else fields[many].asked[0])


class Expansion:
    """Expands words in one state, which ${NAME:=value} and $((NAME++)) change."""

    def __init__(self, state: State, run: Callable[[Substitution, State], Text]) -> None:
        """Prepare it; `run` gives the output of $(...)."""
        self.state, self._run = state, run
        self.parameters = Parameters(state, self.single, self.signs)

    def fields(self, nodes: Iterable[WordNode]) -> list[Field]:
        """Return the words of a command line."""
        return [field for node in nodes for field in self._fields(node)]

    def _fields(self, node: WordNode) -> Iterator[Field]:
        try:
            alternatives = (
                braces.expanded(node.parts) if self.state.options.get("braceexpand") is not False else [node.parts]
            )
        except braces.TooManyError as error:
            msg = (
                f"{node.place}: {node.written[:60]!r} gives more words than a launch script needs."
                "\nUp to 10,000 words are read.\nWrite fewer."
            )
            raise MigrateError(msg) from error
        for parts in alternatives:
            pieces = list(self._pieces(_with_home(parts), is_quoted=False))
            yield from _words(self._usual(pieces), node, globs=not self.state.options.get("noglob"))

    def _usual(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Return pieces, with a hole for each that is split at other characters than blanks."""
        if self._splits_at_blanks():
            return list(pieces)
        return [_hole(piece, "IFS") if piece.split and piece.span.text else piece for piece in pieces]

    def _splits_at_blanks(self) -> bool:
        if "IFS" in self.state.defined:
            return False
        cell = self.state.cell("IFS")
        if cell is None:
            return True
        return cell.elements is not None and (not cell.elements or cell.elements[0].key() == (" \t\n",))

    def single(self, parts: Parts, *, is_quoted: bool = False, is_assignment: bool = False) -> Text:
        """Return a value that is not split: an assignment's, a here-document's, that of a test."""
        parts = parts if is_quoted else _with_home(parts, is_assignment=is_assignment)
        found: list[Span] = []
        for piece in self._pieces(parts, is_quoted=is_quoted):
            found.append(piece.span)
            if piece.ends:
                found.append(Span(" ", piece.span.place))
        text = Text(_merged(found))
        self.state.budget.spend(_place(parts), characters=len(text.text) + len(text.spans))
        return text

    def signs(self, parts: Parts) -> tuple[list[tuple[str, bool]], Text]:
        """Return a pattern's characters with whether each is quoted, and the pattern as a text for what it asks."""
        pieces = list(self._pieces(_with_home(parts), is_quoted=False))
        signs = [(sign, piece.quoted) for piece in pieces for sign in piece.span.text + " " * piece.ends]
        return signs, Text(tuple(piece.span for piece in pieces))

    def _pieces(self, parts: Parts, *, is_quoted: bool, in_expansion: bool = False) -> Iterator[Piece]:
        for part in parts:
            if isinstance(part, Literal):
                quoted = part.quoted or is_quoted
                for span in part.text.spans or ((Span("", _place(parts)),) if part.quoted and not is_quoted else ()):
                    yield Piece(span, quoted=quoted, split=in_expansion and not quoted)
            elif isinstance(part, Quotes):
                yield from self._quoted(part)
            else:
                yield from self._expanded(part, is_quoted=is_quoted)

    def _quoted(self, part: Quotes) -> Iterator[Piece]:
        inner = list(self._pieces(part.parts, is_quoted=True))
        if not any(piece.absent for piece in inner):
            yield Piece(Span("", part.place), quoted=True)
        yield from (piece for piece in inner if not piece.absent)

    def _asked(self, asked: Asked, *, is_quoted: bool) -> Text:
        """Return what the user defined for a hole, or the hole."""
        if asked.name in self.state.defined:
            return known(self.state.defined[asked.name], asked.place)
        return Text((Span("", asked.place, asked, is_many=not is_quoted),))

    def _expanded(self, part: Part, *, is_quoted: bool) -> Iterator[Piece]:
        if isinstance(part, Parameter):
            yield from self._parameter(part, is_quoted=is_quoted)
            return
        if isinstance(part, Unknown):
            text = self._asked(part.asked, is_quoted=is_quoted)
        elif isinstance(part, Arithmetic):
            text = self.parameters.calculated(part)
        else:
            assert isinstance(part, Substitution)  # noqa: S101  the caller looked
            text = self._run(part, self.state)
        yield from _of_text(text, is_quoted=is_quoted)

    def _parameter(self, part: Parameter, *, is_quoted: bool) -> Iterator[Piece]:
        chosen = self.parameters.alternative(part)
        if chosen is not None:
            pieces = self._pieces(chosen, is_quoted=is_quoted, in_expansion=not is_quoted)
            yield from pieces
            return
        found = self.parameters.value(part)
        if isinstance(found, Text):
            self.state.budget.spend(part.place, characters=len(found.spans))
            yield from _of_text(found, is_quoted=is_quoted)
            return
        self.state.budget.spend(part.place, characters=sum(len(text.spans) + 20 for text in found))
        if is_quoted and "*" in (part.name, part.index):
            yield from self._joined(found, part)
            return
        if not found:
            yield Piece(Span("", part.place), absent=True)
        for number, text in enumerate(found):
            ends = number < len(found) - 1
            if is_quoted:
                yield Piece(Span("", part.place), quoted=True)
            yield from _of_text(text, is_quoted=is_quoted)
            yield Piece(Span("", part.place), ends=ends)

    def _joined(self, found: Sequence[Text], part: Parameter) -> Iterator[Piece]:
        if not self._splits_at_blanks():
            yield _hole(Piece(Span("", part.place), quoted=True), "IFS")
            return
        for number, text in enumerate(found):
            yield from _of_text((known(" ", part.place) if number else Text()) + text, is_quoted=True)


def _merged(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Return spans with those of one line joined, so that a text that grows does not grow in spans."""
    found: list[Span] = []
    for span in spans:
        last = found[-1] if found else None
        if span.asked:
            found.append(replace(span, is_many=False))
        elif last and not last.asked and last.place == span.place:
            found[-1] = Span(last.text + span.text, last.place)
        elif span.text:
            found.append(span)
    return tuple(found)


def _of_text(text: Text, *, is_quoted: bool) -> Iterator[Piece]:
    for span in text.spans:
        yield Piece(span, quoted=is_quoted, split=not is_quoted)


def _hole(piece: Piece, name: str) -> Piece:
    asked = Asked(name, piece.span.place, f"{name} says where words end")
    return replace(piece, span=Span("", piece.span.place, asked))


def _place(parts: Parts) -> Place:
    first = parts[0] if parts else None
    if isinstance(first, Literal):
        return first.text.spans[0].place if first.text.spans else Place("script")
    if isinstance(first, Unknown):
        return first.asked.place
    return first.place if first else Place("script")


def _with_home(parts: Parts, *, is_assignment: bool = False) -> Parts:
    """Return a word with $HOME for a tilde; one for another user's home is asked for."""
    first = parts[0] if parts else None
    if not isinstance(first, Literal) or first.quoted or "~" not in first.text.text:
        return parts
    text = first.text.text
    named = re.match(r"[A-Za-z_]\w*=", text, re.ASCII)
    start = 0 if text.startswith("~") else named.end() if named and text[named.end() : named.end() + 1] == "~" else -1
    if (is_assignment or named) and ":~" in text:
        return (Unknown(Asked(text, _place(parts), text)), *parts[1:])
    found = _TILDE.match(text, start) if start >= 0 else None
    if found is None or (found.end() == len(text) and len(parts) > 1):
        return parts
    place = _place(parts)
    home: Part = Quotes((Parameter("HOME", place, "~"),), place)
    if found[0] != "~":
        home = Unknown(Asked(found[0], place, found[0]))
    rest = Literal(known(text[found.end() :], place), quoted=False)
    before = Literal(known(text[:start], place), quoted=False)
    return (before, home, rest, *parts[1:])


class _Builder:
    """A word that is being put together."""

    def __init__(self, node: WordNode) -> None:
        self.node = node
        self.spans: list[Span] = []
        self.pattern, self.exists = "", False

    def add(self, text: str, piece: Piece) -> None:
        hole = piece.span.asked is not None
        if text or hole:
            self.spans.append(replace(piece.span, text=text, is_many=hole and (piece.split or piece.span.is_many)))
        self.pattern += "" if piece.quoted else text
        self.exists = self.exists or bool(text) or piece.quoted or hole

    def taken(self, *, globs: bool) -> Iterator[Field]:
        """Yield the word if there is one, and begin the next."""
        if self.exists:
            place = self.spans[0].place if self.spans else self.node.place
            text = Text(tuple(self.spans))
            asked = text.asked
            is_pattern = re.search(r"[*?]", self.pattern) and "(" not in text.text
            if globs and is_pattern and not _FREQUENCY.fullmatch(text.text) and not asked:
                asked = (Asked(text.text, place, FILES),)
                text = Text((*self.spans, Span("", place, asked[0], is_many=True)))
            yield Field(text, place, asked)
        self.spans, self.pattern, self.exists = [], "", False


def _words(pieces: Sequence[Piece], node: WordNode, *, globs: bool) -> Iterator[Field]:
    word = _Builder(node)
    for piece in pieces:
        texts = _BLANKS.split(piece.span.text) if piece.split else [piece.span.text]
        for number, text in enumerate(texts):
            if number:
                yield from word.taken(globs=globs)
            word.add(text, piece)
        if piece.ends:
            yield from word.taken(globs=globs)
    yield from word.taken(globs=globs)
