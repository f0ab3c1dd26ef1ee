"""Which texts of a chunk are compared with the reference: several, far apart, rather those that are uncommon."""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from pretrain.data.tokenizers import Tokenizer

_MARKS = (0, 3, 6, 1, 4, 7, 2, 5)
"""Eighths of a chunk. Not all may be compared, and so the first are far apart."""
_CANDIDATES = 4
_LONGEST = 1 << 10
_LOOKED_THROUGH = 1 << 11
"""Characters for an added token: there can be hundreds of them."""
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_DIVISION = re.compile(r"(?<=[^\W_])(?=[ \n])")
"""Between a letter or digit and a space: every division that `agreement` knows divides there, whatever is around it."""


class Sample(NamedTuple):
    """One text, or a part of a longer one, with the ids that were written for it.

    Attributes:
        text: at most 1024 characters.
        ids: of `text`; none if what is written for a longer text does not hold what its part gets alone.
        number: which text of the chunk.
        rare: whether it holds a character outside ASCII or an added token.
    """

    text: str
    ids: list[int]
    number: int
    rare: bool


def samples_of(tokenizer: Tokenizer, texts: Sequence[str], ids: Sequence[Any]) -> list[Sample]:
    """Return up to eight samples spread over `texts`, the rare ones first; empty texts are none.

    Args:
        tokenizer: encodes the parts of long texts.
        texts: of a chunk.
        ids: of each text.
    """
    ends = list(accumulate(map(len, texts)))
    found: dict[tuple[int, int], Sample] = {}
    for mark in _MARKS if ends and ends[-1] else ():
        position = ends[-1] * mark // len(_MARKS)
        number = bisect_right(ends, position)
        offset = position - (ends[number] - len(texts[number]))
        number, begin, rare = _chosen(tokenizer.added_tokens, texts, number, offset)
        if (number, begin) not in found:
            found[number, begin] = Sample(*_written(tokenizer, texts[number], ids[number], begin), number, rare)
    return sorted(found.values(), key=lambda sample: not sample.rare)


def _written(tokenizer: Tokenizer, text: str, ids: Any, begin: int) -> tuple[str, list[int]]:
    """Return a part of `text` and its ids.

    A part is cut where the text is divided anyway, so that its ids are among the written ones. A text that has no such
    places, as one without spaces, is cut anywhere, and of its ids only those of the part alone are compared.
    """
    if len(text) <= _LONGEST:
        return text, list(map(int, ids))
    first, last = _divided(text, begin, begin + _LONGEST, tokenizer.added_tokens)
    if first >= last:
        part = text[begin : begin + _LONGEST]
        return part, tokenizer.encode(part)
    part = text[first:last]
    of_part = tokenizer.encode(part)
    return part, of_part if _holds(np.asarray(ids), np.asarray(of_part)) else []


def _divided(text: str, begin: int, end: int, added: Sequence[str]) -> tuple[int, int]:
    """Return the first and the last place from `begin` to `end` where the text is divided; its own ends are, too."""
    if any(map(_DIVISION.search, added)):
        return end, begin
    tokens = tuple(added)  # one may take the space after it
    found = _DIVISION.finditer(text, begin, min(end + 1, len(text)))
    places = [match.start() for match in found if not text.endswith(tokens, 0, match.start())] or [end, begin]
    return begin if begin == 0 else places[0], len(text) if end >= len(text) else places[-1]


def _holds(ids: npt.NDArray[Any], part: npt.NDArray[Any]) -> bool:
    """Whether `part` is somewhere in `ids`, one after the other."""
    last = len(ids) - len(part)
    places = np.flatnonzero(ids[: last + 1] == part[0]) if last >= 0 else np.zeros(0, np.intp)
    for offset in range(1, len(part)):
        places = places[ids[places + offset] == part[offset]]
    return bool(len(places))


def _chosen(added: Sequence[str], texts: Sequence[str], number: int, offset: int) -> tuple[int, int, bool]:
    """Return a text, where the sample begins in it, and whether it is rare: of `number`, or of one soon after it."""
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
    places = (text.find(token, begin, begin + _LOOKED_THROUGH) for token in added)
    return next((place for place in places if place >= 0), None)
