"""Sums between two logged lines, kept on the device without waiting for it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from pretrain.engine.protocol import Step


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """Result of an interval, equal on all ranks.

    Attributes:
        lm_loss: mean over the iterations that were not skipped and whose loss was finite; None if there was none.
        nan_iterations: iterations whose loss was not finite on some rank, and that were not skipped.
    """

    lm_loss: float | None
    nan_iterations: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TakenStep:
    """A step, and what it was taken with.

    Attributes:
        step: its result.
        batch: its global batch, samples.
        learning_rate: of its update.
    """

    step: Step
    batch: int
    learning_rate: float


class Interval:
    """The iterations since the last logged line."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(3, device=device)  # finite losses, their number, losses that are not finite
        self._started = 0.0
        self.skipped_in_a_row = 0
        self.last_step: TakenStep | None = None
        self.start()

    def start(self) -> None:
        """Begin a new interval; the clock runs."""
        self._sums.zero_()
        self.iterations = 0
        self.samples = 0
        self.skipped_iterations = 0
        self.withheld_iterations = 0
        self.last_step = None
        self.seconds = 0.0
        self.resume()

    def add(self, step: Step, samples: int, learning_rate: float) -> None:
        """Count a step; does not wait for the device."""
        self.iterations += 1
        self.last_step = TakenStep(step=step, batch=samples, learning_rate=learning_rate)
        self.samples += samples
        self.skipped_iterations += step.skipped
        self.withheld_iterations += step.withheld
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if step.skipped else 0
        if step.loss is not None and not (step.skipped or step.withheld):
            finite = torch.isfinite(step.loss)
            self._sums += torch.stack((torch.where(finite, step.loss, 0.0), finite.float(), (~finite).float()))

    def wait(self) -> None:
        """Wait until the device has taken the steps so far: their time is theirs."""
        self._sums.tolist()

    def pause(self) -> None:
        """Stop the clock, which leaves out evaluations and checkpoints."""
        now = time.perf_counter()
        self.seconds += now - self._started
        self._started = now

    def resume(self) -> None:
        """Start the clock again."""
        self._started = time.perf_counter()

    def take(self) -> Totals:
        """Stop the clock, wait for the device, and return the sums over all ranks; all ranks call it together."""
        sums = self._sums.clone()
        dist.all_reduce(sums)
        not_finite = self._sums[2:].clone()
        dist.all_reduce(not_finite, op=dist.ReduceOp.MAX)
        loss, count = sums[:2].tolist()
        totals = Totals(lm_loss=loss / count if count else None, nan_iterations=int(not_finite.item()))
        self.pause()
        return totals
