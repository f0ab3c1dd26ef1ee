"""Losses of the last steps, and whether another one is a spike."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median

WINDOW = 100
"""Steps whose median a loss is compared with. Megatron-LM's check_for_spiky_loss also keeps 100, and compares with
their maximum (is_unexpectedly_large in megatron/core/rerun_state_machine.py)."""
FEWEST = 20
"""Steps after which losses are judged: before, the first steps of a training fall too fast for a median."""


@dataclass(slots=True)
class LossWindow:
    """Losses of the last `WINDOW` steps that were taken.

    Attributes:
        threshold: a loss above so many times their median is a spike.
        losses: in nats per token, the latest last; changed in place.
    """

    threshold: float
    losses: list[float] = field(default_factory=list)

    @property
    def median(self) -> float | None:
        """Median of the losses; None before `FEWEST` of them."""
        return median(self.losses) if len(self.losses) >= FEWEST else None

    def is_spike(self, loss: float) -> bool:
        """Say whether a loss is a spike; one that is not finite is always above the threshold."""
        usual = self.median
        return not math.isfinite(loss) or (usual is not None and loss > self.threshold * usual)

    def add(self, loss: float) -> None:
        """Add the loss of a step that was taken; one that is not finite is left out."""
        if math.isfinite(loss):
            self.losses.append(loss)
            del self.losses[:-WINDOW]
