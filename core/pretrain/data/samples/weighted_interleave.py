"""Interleave samples of several datasets by weights, which may change when a training is resumed."""

from __future__ import annotations

import heapq
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class Phase:
    """A part of a training with a constant blend. Datasets are named by their identity."""

    begin: int  # sample of the training at which it begins
    weights: dict[str, float]
    read: dict[str, int] = field(default_factory=dict)  # before `begin`, of every dataset of this and earlier phases

    def at(self, position: int) -> tuple[str, int]:
        """Return the dataset of the sample at `position`, and its number there, counted over all phases and epochs."""
        dataset, turn = self._turns.at(position - self.begin)
        name = self._names[dataset]
        return name, self.read.get(name, 0) + turn

    def read_before(self, position: int) -> dict[str, int]:
        """Return the number of samples read of every dataset before `position`."""
        turns = dict(zip(self._names, self._turns.before(position - self.begin), strict=True))
        return {name: self.read.get(name, 0) + turns.get(name, 0) for name in self.read | turns}

    def resume(self, position: int, weights: Mapping[str, float]) -> Phase:
        """Return the phase of `position`: this one, or a new one if the weights have changed."""
        if _shares(weights) == _shares(self.weights):
            return self
        return Phase(position, dict(weights), self.read_before(position))

    def to_mapping(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_mapping(cls, saved: Mapping[str, Any]) -> Self:
        """Restore the result of `to_mapping`."""
        return cls(saved["begin"], dict(saved["weights"]), dict(saved["read"]))

    @cached_property
    def _names(self) -> list[str]:
        return sorted(self.weights)  # the order in the recipe may change

    @cached_property
    def _turns(self) -> WeightedInterleave:
        return WeightedInterleave([self.weights[name] for name in self._names])


def _shares(weights: Mapping[str, float]) -> dict[str, Fraction]:
    total = sum(map(Fraction, weights.values()))
    return {name: Fraction(weight) / total for name, weight in weights.items()}


class WeightedInterleave:
    """An endless sequence of turns, apportioned to datasets as fairly as whole samples allow, in every prefix.

    The k-th turn of a dataset of weight w, from 0, has the key (2 k + 1) / w, and turns come in the order of their keys
    (the method of Webster and Sainte-Lague, by which parliaments apportion seats). So the dataset of a position follows
    from the position alone. Arithmetic is exact.
    """

    def __init__(self, weights: Sequence[float]) -> None:
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
