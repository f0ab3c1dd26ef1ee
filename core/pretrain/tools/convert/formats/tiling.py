"""Check that the pieces of a tensor have each of its numbers exactly once."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import TYPE_CHECKING

from pretrain.errors import DamageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

_MOST_DIMENSIONS = 6
"""Most dimensions of a tensor; a piece has 2 to the power of that many corners."""

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Offsets and sizes of a piece."""


def require_tiled(path: Path, key: str, shape: Sequence[int], pieces: Sequence[Box]) -> None:
    """Require that pieces fill a tensor without overlap; the time is linear in their number.

    A number is in the pieces as often as the differences at their corners add up to: +1 at the first corner, with the
    sign changing along each dimension. They therefore have each number once where their corners' sum is the tensor's.

    Args:
        path: of the index, for the error.
        key: of the tensor, for the error.
        shape: of the tensor.
        pieces: offsets and sizes of each.

    Raises:
        DamageError: they do not, or have other dimensions than the tensor, or it has too many.
    """
    rank = len(shape)
    whole = (0,) * rank, tuple(shape)
    if rank > _MOST_DIMENSIONS or not all(_is_box(box, rank) for box in (whole, *pieces)):
        problem = "has pieces of other dimensions than its own"
    elif _corners(pieces) != _corners([whole]):
        problem = "has numbers that its pieces leave out or repeat"
    else:
        return
    msg = f"{path} is damaged: {key[:120]} {problem}.\nCopy it again."
    raise DamageError(msg)


def _is_box(box: Box, rank: int) -> bool:
    return all(len(numbers) == rank and all(type(each) is int and each >= 0 for each in numbers) for numbers in box)


def _corners(boxes: Iterable[Box]) -> dict[tuple[int, ...], int]:
    """Return the sum of the signs at every corner where it is not 0; those of an empty box cancel."""
    signs: Counter[tuple[int, ...]] = Counter()
    for offsets, sizes in boxes:
        for ends in product((0, 1), repeat=len(sizes)):
            corner = tuple(first + end * size for first, end, size in zip(offsets, ends, sizes, strict=True))
            signs[corner] += -1 if sum(ends) % 2 else 1
    return {corner: sign for corner, sign in signs.items() if sign}
