"""Map-style dataset of a split, without an index."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pretrain.data.samples.native.phase import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from pretrain.data.samples.native.masks_and_positions import SampleFormat
    from pretrain.data.samples.native.windows import Windows


@dataclass(frozen=True, kw_only=True)
class NativeSamples:
    """Samples of one or several token files, by their position in the training.

    Attributes:
        parts: the token files, by identity.
        phase: chooses the file of a position.
        format: converts ids to a sample.
        length: number of samples that the training reads.
    """

    parts: Mapping[str, Windows]
    phase: Phase
    format: SampleFormat
    length: int

    @classmethod
    def of(cls, parts: list[tuple[Windows, float]], format_: SampleFormat, length: int) -> NativeSamples:
        """Start from sample 0; a file that is named twice gets the sum of its weights."""
        weights: dict[str, float] = {}
        for windows, weight in parts:
            weights[windows.identity] = weights.get(windows.identity, 0.0) + weight
        by_identity = {windows.identity: windows for windows, _ in parts}
        return cls(parts=by_identity, phase=Phase(0, weights), format=format_, length=length)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, position: int) -> dict[str, Tensor]:
        """Return the sample at a position of the training."""
        if not self.phase.begin <= position < self.length:
            msg = f"{position} is not in range({self.phase.begin}, {self.length})"
            raise IndexError(msg)
        name, number = self.phase.at(position)
        return self.format(self.parts[name][number])

    def resume(self, position: int, saved: Mapping[str, Any] | None) -> NativeSamples:
        """Return the samples from `position` on of a training whose checkpoint holds `saved`.

        Args:
            position: samples that the training has read.
            saved: result of `blend` at that time; None if it is unknown, as after another `data.index`.
        """
        before = Phase.from_mapping(saved) if saved else Phase(position, self.phase.weights)
        return replace(self, phase=before.resume(position, self.phase.weights))

    def blend(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return self.phase.to_mapping() | {"paths": {name: windows.prefix for name, windows in self.parts.items()}}

    def describe(self, position: int) -> list[str]:
        """Return a line for each token file: its weight, and the samples read of it before a position."""
        total, read = sum(self.phase.weights.values()), self.phase.read_before(position)
        return [
            f"{windows.prefix}: weight {self.phase.weights[name] / total:.4g}, {read.get(name, 0):,} samples read, "
            f"{windows.per_epoch:,} make an epoch"
            for name, windows in self.parts.items()
        ]
