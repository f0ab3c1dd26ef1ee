"""What has been read of each dataset, and in which proportions reading goes on."""

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
    """A part of a training in which the blend stays as it is. Datasets are named by their identity.

    Attributes:
        begin: the sample of the training at which it began.
        weights: of the datasets that are read.
        read: samples that had been read before `begin` of every dataset there ever was.
    """

    begin: int
    weights: dict[str, float]
    read: dict[str, int] = field(default_factory=dict)

    def at(self, position: int) -> tuple[str, int]:
        """Return the dataset of the training's sample at `position`, from `begin` on, and which of its samples it is.

        The samples of a dataset are counted over all phases and epochs, so that none comes a second time before the
        others had their turn, whatever became of the weights.
        """
        dataset, turn = self._turns.at(position - self.begin)
        name = self._names[dataset]
        return name, self.read.get(name, 0) + turn

    def read_before(self, position: int) -> dict[str, int]:
        """Return the samples that have been read of every dataset before `position`."""
        turns = dict(zip(self._names, self._turns.before(position - self.begin), strict=True))
        return {name: self.read.get(name, 0) + turns.get(name, 0) for name in self.read | turns}

    def go_on(self, position: int, weights: Mapping[str, float]) -> Phase:
        """Return the phase in which `position` is read, with which a new one begins if the weights are other ones."""
        if _shares(weights) == _shares(self.weights):
            return self
        return Phase(position, dict(weights), self.read_before(position))

    def to_mapping(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return asdict(self)

    @classmethod
    def from_mapping(cls, saved: Mapping[str, Any]) -> Self:
        """Read what `to_mapping` gave."""
        return cls(saved["begin"], dict(saved["weights"]), dict(saved["read"]))

    @cached_property
    def _names(self) -> list[str]:
        return sorted(self.weights)  # not in the order of the recipe, which may change

    @cached_property
    def _turns(self) -> Apportionment:
        return Apportionment([self.weights[name] for name in self._names])


def _shares(weights: Mapping[str, float]) -> dict[str, Fraction]:
    total = sum(map(Fraction, weights.values()))
    return {name: Fraction(weight) / total for name, weight in weights.items()}
