"""Log lines and checkpoints: a training whose numbers are not finite ends at the first of either."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.report.hang.position import LOG
from pretrain.training.event import Event

if TYPE_CHECKING:
    from pretrain.engine.protocol import Engine
    from pretrain.training.event import Due
    from pretrain.training.progress import Length, Progress
    from pretrain.training.reporting.meter import Meter
    from pretrain.training.safeguards.health import Health
    from pretrain.training.safeguards.spike_response import SpikeResponse
    from pretrain.training.saving import Saving


@dataclass(frozen=True, kw_only=True, slots=True)
class LogLines(Event):
    """Logs each interval.

    Attributes:
        meter: measures and logs.
        health: judges the interval.
        engine: took the steps.
        progress: of the training.
        length: of the training.
    """

    meter: Meter
    health: Health
    engine: Engine
    progress: Progress
    length: Length

    def after_iteration(self, due: Due) -> bool:
        """Log a line if it is due."""
        if due.line:
            with self.meter.timers.position.during(LOG):
                self._log()
        return False

    def _log(self) -> None:
        taken = self.meter.interval.last_step
        if taken is None:
            where = f"iteration {self.progress.iteration}/{self.length.iterations}"
            self.meter.logger.note(f"{where} | every batch since the last line was left out")
            return
        totals = self.meter.interval.take()
        self.health.check(totals)
        self.meter.log(totals, taken, self.engine, self.progress)


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoints(Event):
    """Saves at an interval, before the training leaves, and at its end.

    Attributes:
        saving: writes the checkpoints.
        engine: what is saved.
        progress: of the training.
        meter: whose clock stands still.
        health: has the error of weights that are not finite.
        spikes: may take them back; None where losses are not watched.
    """

    saving: Saving
    engine: Engine
    progress: Progress
    meter: Meter
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
        if self.saving.is_done(self.progress):
            return False
        with self.meter.pausing():
            with self.meter.timers.phase("save"):
                # With fewer log lines than checkpoints, broken weights would be saved, and good ones removed.
                is_finite = math.isfinite(self.engine.parameters_norm().item())
                saved = self.saving.save(self.engine, self.progress, trains_on=trains_on) if is_finite else None
            if not is_finite and not (trains_on and self.spikes is not None and self.spikes.takes_back_weights()):
                raise self.health.not_finite()
            if saved is not None:
                self.meter.logger.note(f"checkpoint: {saved}")
        return not is_finite
