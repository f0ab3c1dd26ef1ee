"""Which texts of a chunk are compared with the reference: several, far apart, rather those that are uncommon."""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.data.tokenizers import Tokenizer

_MARKS = (0, 3, 6, 1, 4, 7, 2, 5)
"""Eighths of a chunk. Not all may be compared, and so the first are far apart."""
_CANDIDATES = 4
_LONGEST = 1 << 10
_LOOKED_THROUGH = 1 << 11
"""Characters for an added token: there can be hundreds of them."""
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


class Sample(NamedTuple):
    """One text with the ids that were written for it, or a part of a longer one with those it gets alone.

    Attributes:
        text: at most 1024 characters.
        ids: of `text`.
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
            text = texts[number][begin : begin + _LONGEST]
            whole = len(text) == len(texts[number])
            of_text = list(map(int, ids[number])) if whole else tokenizer.encode(text)
            found[number, begin] = Sample(text, of_text, number, rare)
    return sorted(found.values(), key=lambda sample: not sample.rare)


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
