"""A recipe's split as a map-style dataset without an index."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pretrain.data.samples.native.phase import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from pretrain.data.samples.native.masks_and_positions import SampleForm
    from pretrain.data.samples.native.windows import Windows


@dataclass(frozen=True, kw_only=True)
class NativeSamples:
    """Samples of one or several token files, by their position in the training.

    Attributes:
        parts: the token files, by identity.
        phase: which of them is read at a position.
        form: makes a sample of ids.
        length: samples that the training reads.
    """

    parts: Mapping[str, Windows]
    phase: Phase
    form: SampleForm
    length: int

    @classmethod
    def of(cls, parts: list[tuple[Windows, float]], form: SampleForm, length: int) -> NativeSamples:
        """Begin with nothing read; a file that is named twice has the sum of its weights."""
        weights: dict[str, float] = {}
        for windows, weight in parts:
            weights[windows.identity] = weights.get(windows.identity, 0.0) + weight
        by_identity = {windows.identity: windows for windows, _ in parts}
        return cls(parts=by_identity, phase=Phase(0, weights), form=form, length=length)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, position: int) -> dict[str, Tensor]:
        """Return the sample at a position of the training."""
        if not self.phase.begin <= position < self.length:
            msg = f"{position} is not in range({self.phase.begin}, {self.length})"
            raise IndexError(msg)
        name, number = self.phase.at(position)
        return self.form(self.parts[name][number])

    def go_on(self, position: int, saved: Mapping[str, Any] | None) -> NativeSamples:
        """Return the samples from `position` on of a training whose checkpoint holds `saved`.

        Args:
            position: samples that the training has read.
            saved: what `blend` was; None: nothing is known of what was read, as after another `data.index`.
        """
        before = Phase.from_mapping(saved) if saved else Phase(position, self.phase.weights)
        return replace(self, phase=before.go_on(position, self.phase.weights))

    def blend(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return self.phase.to_mapping() | {"paths": {name: windows.prefix for name, windows in self.parts.items()}}

    def describe(self, position: int) -> list[str]:
        """Return a line for each token file: its weight, and how much of it was read before a position."""
        total, read = sum(self.phase.weights.values()), self.phase.read_before(position)
        return [
            f"{windows.prefix}: weight {self.phase.weights[name] / total:.4g}, {read.get(name, 0):,} samples read, "
            f"{windows.per_epoch:,} make an epoch"
            for name, windows in self.parts.items()
        ]
