"""Log lines and checkpoints: a training whose numbers are not finite ends at the first of either."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.report.hang.position import LOG
from pretrain.training.event import Event

if TYPE_CHECKING:
    from pretrain.training.event import Due
    from pretrain.training.loop import Training
    from pretrain.training.safeguards.health import Health
    from pretrain.training.safeguards.spike_response import SpikeResponse
    from pretrain.training.saving import Saving


@dataclass(frozen=True, slots=True)
class LogLines(Event):
    """Logs each interval."""

    training: Training
    health: Health

    def after_iteration(self, due: Due) -> bool:
        """Log a line if it is due."""
        if due.line:
            with self.training.meter.timers.position.during(LOG):
                self._log(due.iteration)
        return False

    def _log(self, iteration: int) -> None:
        training, meter = self.training, self.training.meter
        taken = meter.interval.last_step
        if taken is None:
            where = f"iteration {iteration}/{training.length.iterations}"
            meter.logger.note(f"{where} | every batch since the last line was left out")
            return
        totals = meter.interval.take()
        self.health.check(totals)
        meter.log(totals, taken, training.engine, training.progress)


@dataclass(frozen=True, slots=True)
class Checkpoints(Event):
    """Saves at an interval, before the training leaves, and at its end.

    Attributes:
        training: what is saved.
        saving: writes the checkpoints.
        health: has the error of weights that are not finite.
        spikes: may take them back; None where losses are not watched.
    """

    training: Training
    saving: Saving
    health: Health
    spikes: SpikeResponse | None

    def after_iteration(self, due: Due) -> bool:
        """Save if it is due; without a step since the latest checkpoint, only before the training leaves."""
        is_due = due.checkpoint and (bool(due.reason) or self.saving.has_new_step)
        return is_due and self._save(trains_on=not due.reason)

    def end(self, reason: str) -> None:  # noqa: ARG002  an event's signature
        """Save, before the last evaluations: a run that is killed in them loses nothing."""
        self._save(trains_on=False)

    def _save(self, *, trains_on: bool) -> bool:
        """Write a checkpoint, unless there is one of this iteration; return whether weights were taken back instead."""
        engine, progress, meter = self.training.engine, self.training.progress, self.training.meter
        if self.saving.is_done(progress):
            return False
        with meter.pausing():
            with meter.timers.phase("save"):
                # With fewer log lines than checkpoints, broken weights would be saved, and good ones removed.
                is_finite = math.isfinite(engine.parameters_norm().item())
                saved = self.saving.save(engine, progress, trains_on=trains_on) if is_finite else None
            if not is_finite and not (trains_on and self.spikes is not None and self.spikes.takes_back_weights()):
                raise self.health.not_finite()
            if saved is not None:
                meter.logger.note(f"checkpoint: {saved}")
        return not is_finite
