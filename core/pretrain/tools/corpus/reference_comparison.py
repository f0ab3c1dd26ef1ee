"""Compare a sample of every build with the reference tokenizer: a few texts of a chunk, uncommon ones first."""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pretrain.errors import DataError
from pretrain.tools.corpus.documents import where

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from pretrain.data.tokenizers import Tokenizer
    from pretrain.tools.corpus.chunks import Chunk

_AT_LEAST = 1 << 16
_SHARE = 0.001  # of the text that is compared; small, because the reference is slower


class ReferenceComparison:
    """Compare ids with the reference: the first 64 Ki characters, and then a thousandth of the text."""

    def __init__(self, load: Callable[[], Tokenizer]) -> None:
        self._load = load  # takes longer than encoding a small corpus, so it is called late
        self._reference: Tokenizer | None = None
        self._left = float(_AT_LEAST)

    def check(self, chunk: Chunk, comparisons: Sequence[TextComparison]) -> int:
        """Compare parts of a chunk, unless enough was compared; return how many texts agreed wholly or in a part."""
        self._left += _SHARE * chunk.size
        agreed = set()
        for part in comparisons:
            if self._left <= 0:
                break
            self._left -= len(part.text)
            self._check(chunk, part)
            agreed.add(part.number)
        return len(agreed)

    def _check(self, chunk: Chunk, part: TextComparison) -> None:
        self._reference = self._reference or self._load()
        if self._reference.encode(part.text) != part.ids:
            msg = f"{where(chunk)} or a later line: gigatoken and the tokenizers library give different tokens for "
            msg += f"{part.text!r:.60}.\nPass --encoder tokenizers: it is slower, and right."
            raise DataError(msg)


_MARKS = (0, 3, 6, 1, 4, 7, 2, 5)  # eighths of a chunk; the first are far apart, because not all may be compared
_CANDIDATES = 4
_LONGEST = 1 << 10
_SEARCHED = 1 << 11  # characters searched for each added token; there can be hundreds of tokens
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_FEW = 4
# between a letter or digit and a space: every pre-tokenizer that `fast_tokenizer` accepts splits there
_DIVISION = re.compile(r"(?<=[^\W_])(?=[ \n])")


class Part(NamedTuple):
    """A text, or a part of a longer one, that is encoded a second time, on its own."""

    text: str  # at most 1024 characters
    number: int  # index of the text in the chunk
    whole: bool  # whether it is all of that text
    divided: bool  # whether the pre-tokenizer splits the text at both ends, so that its ids are among those of the text
    rare: bool  # whether it holds a character outside ASCII or an added token


class TextComparison(NamedTuple):
    """A part with the ids that were written for it."""

    text: str
    ids: list[int]  # empty if the ids of the part alone are not among the written ones
    number: int  # index of the text in the chunk


def parts_of(added: Sequence[str], texts: Sequence[str]) -> list[Part]:
    """Return up to eight parts spread over the `texts` of a chunk, the rare ones first; empty texts have none."""
    ends = list(accumulate(map(len, texts)))
    found: dict[tuple[int, int], Part] = {}
    for mark in _MARKS if ends and ends[-1] else ():
        position = ends[-1] * mark // len(_MARKS)
        number = bisect_right(ends, position)
        offset = position - (ends[number] - len(texts[number]))
        number, begin, rare = _chosen(added, texts, number, offset)
        if (number, begin) not in found:
            found[number, begin] = _part(added, texts[number], number, begin, rare=rare)
    return sorted(found.values(), key=lambda part: not part.rare)


def comparisons_of(parts: Sequence[Part], ids: Sequence[Any], of_parts: Sequence[Any]) -> list[TextComparison]:
    """Return each part with the ids that were written for it."""
    return [
        TextComparison(part.text, _written(part, ids[part.number], alone), part.number)
        for part, alone in zip(parts, of_parts, strict=True)
    ]


def _part(added: Sequence[str], text: str, number: int, begin: int, *, rare: bool) -> Part:
    if len(text) <= _LONGEST:
        return Part(text, number, whole=True, divided=True, rare=rare)
    first, last = _divided(text, begin, begin + _LONGEST, added)
    if first < last:
        return Part(text[first:last], number, whole=False, divided=True, rare=rare)
    # without spaces, for instance, it is cut anywhere
    return Part(text[begin : begin + _LONGEST], number, whole=False, divided=False, rare=rare)


def _written(part: Part, of_text: Any, alone: Any) -> list[int]:
    if part.whole:
        return list(map(int, of_text))
    found = not part.divided or _holds(np.asarray(of_text), np.asarray(alone))
    return list(map(int, alone)) if found else []


def _divided(text: str, begin: int, end: int, added: Sequence[str]) -> tuple[int, int]:
    """Return the first and the last split from `begin` to `end`; the ends of the text count as splits."""
    if any(map(_DIVISION.search, added)):
        return end, begin
    tokens = tuple(added)  # one may take the space after it
    found = _DIVISION.finditer(text, begin, min(end + 1, len(text)))
    places = [match.start() for match in found if not text.endswith(tokens, 0, match.start())] or [end, begin]
    return begin if begin == 0 else places[0], len(text) if end >= len(text) else places[-1]


def _holds(ids: npt.NDArray[Any], part: npt.NDArray[Any]) -> bool:
    size, last = len(part), len(ids) - len(part)
    places = np.flatnonzero(ids[: last + 1] == part[0]) if last >= 0 else np.zeros(0, np.intp)
    for offset in range(1, min(size, _FEW)):  # one common id occurs often, four in a row seldom
        places = places[ids[places + offset] == part[offset]]
    return any(np.array_equal(ids[place : place + size], part) for place in places)


def _chosen(added: Sequence[str], texts: Sequence[str], number: int, offset: int) -> tuple[int, int, bool]:
    """Return a text (`number` or one soon after it), the part's begin in it, and whether it is rare."""
    for candidate in range(number, min(number + _CANDIDATES, len(texts))):
        place = _rare_place(added, texts[candidate], offset if candidate == number else 0)
        if place is not None:
            return candidate, _begin(texts[candidate], place - _LONGEST // 2), True
    return number, _begin(texts[number], offset), False


def _begin(text: str, offset: int) -> int:
    return max(min(offset, len(text) - _LONGEST), 0)


def _rare_place(added: Sequence[str], text: str, offset: int) -> int | None:
    begin = _begin(text, offset)
    if not text.isascii() and (character := _NOT_ASCII.search(text, begin)):
        return character.start()
    places = (text.find(token, begin, begin + _SEARCHED) for token in added)
    return next((place for place in places if place >= 0), None)
