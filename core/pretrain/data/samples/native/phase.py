"""Phases of a training: the samples read of each dataset so far, and the weights from there on."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from pretrain.data.samples.native.apportionment import Apportionment

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Phase:
    """A part of a training with a constant blend. Datasets are named by their identity.

    Attributes:
        begin: sample of the training at which it begins.
        weights: of the datasets that are read.
        read: samples read before `begin`, of every dataset of this and earlier phases.
    """

    begin: int
    weights: dict[str, float]
    read: dict[str, int] = field(default_factory=dict)

    def at(self, position: int) -> tuple[str, int]:
        """Return the dataset of the sample at `position` (from `begin` on), and the sample's number in that dataset.

        The samples of a dataset are counted over all phases and epochs. So no sample is read again before all others
        were read, even if the weights change.
        """
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
    def _turns(self) -> Apportionment:
        return Apportionment([self.weights[name] for name in self._names])


def _shares(weights: Mapping[str, float]) -> dict[str, Fraction]:
    total = sum(map(Fraction, weights.values()))
    return {name: Fraction(weight) / total for name, weight in weights.items()}
