"""The training loop: steps, and the events beside them in one order. It knows no device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pretrain.report.hang.position import BETWEEN, END
from pretrain.training.event import Due

if TYPE_CHECKING:
    from pretrain.engine.protocol import Engine, KeepUpdate
    from pretrain.recipe import Recipe
    from pretrain.training.event import Event
    from pretrain.training.progress import Length, Progress
    from pretrain.training.reporting.meter import Meter
    from pretrain.training.stopping import Stopping
    from pretrain.training.training_data import RewindableBatches


@dataclass(frozen=True, kw_only=True)
class Training:
    """Training from `progress` on, to its end or to the first reason to stop."""

    recipe: Recipe
    length: Length
    progress: Progress  # moved on in place
    engine: Engine
    batches: RewindableBatches  # this rank's micro-batches from `progress` on
    stopping: Stopping
    meter: Meter
    events: tuple[Event, ...] = ()  # in the order in which they are called, at each of the five points of `Event`

    def run(self) -> str:
        """Train; return the reason if it stopped before the last iteration, else an empty string."""
        reason = ""
        self.meter.timers.position.enter(BETWEEN)
        self.meter.interval.start()
        for event in self.events if self.progress.iteration < self.length.iterations else ():
            event.begin()
        while self.progress.iteration < self.length.iterations and not reason:
            reason = self._iterate()
        self.stopping.settle()
        for event in self.events:
            event.end(reason)
        self.meter.timers.position.enter(END)  # the report of a long run takes long
        return reason

    def _iterate(self) -> str:
        """Take one step, then call the events; return a reason to stop, or an empty string."""
        batch = self.length.batch(self.progress)
        if self.batches.skips_next():
            self._skip(batch)
        else:
            self._step(batch)
        due = self._due(self.stopping.reason())
        for event in self.events:
            if event.after_iteration(due):
                return due.urgent
        is_last = self.progress.iteration == self.length.iterations
        return "" if is_last else due.reason  # it came too late: the training is complete, and so is what follows

    def _step(self, batch: int) -> None:
        """Take one step over a global batch of so many samples, and count it."""
        timers, num_microbatches = self.meter.timers, self.length.layout.num_microbatches(batch)
        learning_rate = self.engine.learning_rate
        with timers.position.step(self.progress.iteration + 1), timers.phase("interval"):
            for event in self.events:
                event.begin_step()
            step = self.engine.train_step(self.batches.following, num_microbatches, timers, self._keep_update)
            if not (step.skipped or step.withheld):
                self.engine.advance_schedule(batch)
        self.meter.interval.add(step, batch, learning_rate)
        self.progress.skipped_iterations += step.skipped
        self._count(batch)
        for event in self.events:
            event.end_step(self.progress.iteration, step)

    def _skip(self, batch: int) -> None:
        """Read a global batch of so many samples, drop it, and count it; the clock of the steps stands still."""
        timers, position = self.meter.timers, self.meter.timers.position
        self.meter.interval.pause()
        position.iteration = self.progress.iteration + 1
        with timers.unmeasured(), position.during("data"):  # no waiting of a step; a rank that reads none moves too
            self.batches.skip(self.length.layout.num_microbatches(batch))
        self.meter.interval.resume()
        self._count(batch)

    def _count(self, batch: int) -> None:
        self.progress.iteration += 1
        self.progress.consumed_samples += batch

    @cached_property
    def _keep_update(self) -> KeepUpdate | None:
        return next(filter(None, (event.keep_update for event in self.events)), None)

    def _due(self, urgent: str) -> Due:
        recipe, iteration = self.recipe, self.progress.iteration

        def is_at(every: int | None) -> bool:
            return bool(every) and iteration % (every or 1) == 0

        goes_on = iteration < self.length.iterations
        every = recipe.train.exit_interval
        reason = urgent or (f"train.exit_interval {every}" if is_at(every) and goes_on else "")
        return Due(
            iteration=iteration,
            urgent=urgent,
            reason=reason,
            line=not goes_on or bool(reason) or is_at(recipe.logging.log_interval),
            checkpoint=goes_on and (bool(reason) or is_at(recipe.checkpoint.save_interval)),
            copy=goes_on and not reason and is_at(recipe.checkpoint.local_interval),
            evaluation=goes_on and not urgent and is_at(recipe.evaluation.interval),
        )
