"""Interleave samples of several datasets in proportion to weights, from any position on."""

from __future__ import annotations

import heapq
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class Apportionment:
    """An endless sequence of turns, apportioned to datasets as fairly as whole samples allow, in every prefix.

    The k-th turn of a dataset of weight w, from 0, has the key (2 k + 1) / w, and turns come in the order of their keys
    (the method of Webster and Sainte-Lague, by which parliaments apportion seats). So the dataset of a position follows
    from the position alone. Arithmetic is exact.

    Example:
        turns = Apportionment([2.0, 1.0])
        [turns.at(position)[0] for position in range(6)]  # [0, 0, 1, 0, 0, 1]
    """

    def __init__(self, weights: Sequence[float]) -> None:
        """Take the weights, all positive; their sum does not matter."""
        ratios = [float(weight).as_integer_ratio() for weight in weights]
        common = max(denominator for _, denominator in ratios)  # all are powers of two
        self._weights = [numerator * (common // denominator) for numerator, denominator in ratios]

    def before(self, position: int) -> list[int]:
        """Return the number of turns that each dataset has before a position."""
        total = sum(self._weights)
        # All turns with a key of at most 2 * position / total; their number is about `position`.
        counts = [(2 * position * weight + total) // (2 * total) for weight in self._weights]
        missing = position - sum(counts)
        if missing > 0:
            self._add(counts, missing)
        elif missing < 0:
            self._take_back(counts, -missing)
        return counts

    def at(self, position: int) -> tuple[int, int]:
        """Return the dataset of a position, and the number of its earlier turns."""
        counts = self.before(position)
        dataset = min(range(len(counts)), key=lambda i: (self._key(i, counts[i]), i))
        return dataset, counts[dataset]

    def _add(self, counts: list[int], number: int) -> None:
        turns = [(self._key(i, count), i) for i, count in enumerate(counts)]
        heapq.heapify(turns)
        for _ in range(number):
            _, i = turns[0]
            counts[i] += 1
            heapq.heapreplace(turns, (self._key(i, counts[i]), i))

    def _take_back(self, counts: list[int], number: int) -> None:
        turns = [(-self._key(i, count - 1), -i) for i, count in enumerate(counts) if count]
        heapq.heapify(turns)
        for _ in range(number):
            i = -turns[0][1]
            counts[i] -= 1
            if counts[i]:
                heapq.heapreplace(turns, (-self._key(i, counts[i] - 1), -i))
            else:
                heapq.heappop(turns)

    def _key(self, dataset: int, turn: int) -> Fraction:
        return Fraction(2 * turn + 1, self._weights[dataset])
