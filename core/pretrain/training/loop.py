"""The training loop: steps, evaluations, checkpoints, and an end before the last iteration. It knows no device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.training.health import check_loss_scale, is_broken, not_finite
from pretrain.training.reporting.target import verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pretrain.engine.protocol import Batch, Engine, Step
    from pretrain.errors import TrainingError
    from pretrain.observe.records import EvalRecord
    from pretrain.recipe import Recipe
    from pretrain.training.batch_sizes import Length
    from pretrain.training.evaluation import Evaluation, Split
    from pretrain.training.garbage import Garbage
    from pretrain.training.progress import Progress
    from pretrain.training.reporting.meter import Meter
    from pretrain.training.saving import Saving
    from pretrain.training.stopping import Stopping


@dataclass(frozen=True, kw_only=True)
class Training:
    """Training from `progress` on, to its end or to the first reason to stop.

    Attributes:
        recipe: what is trained.
        length: iterations of the training, and the batch of each.
        progress: counters, moved on in place.
        engine: takes the steps.
        batches: this rank's micro-batches from `progress` on; None where its stages read no data.
        evaluation: held-out loss; None if switched off.
        saving: writes checkpoints; None if switched off.
        stopping: reasons to leave early.
        garbage: collects Python's between steps.
        meter: measures and logs.
        continuation: continues the recipe's prompt at the end; None without one.
    """

    recipe: Recipe
    length: Length
    progress: Progress
    engine: Engine
    batches: Iterator[Batch] | None
    evaluation: Evaluation | None
    saving: Saving | None
    stopping: Stopping
    garbage: Garbage
    meter: Meter
    continuation: Callable[[], str] | None

    def run(self) -> str:
        """Train; return the reason if it stopped before the last iteration, else an empty string."""
        reason = ""
        self.meter.interval.start()
        while self.progress.iteration < self.length.iterations and not reason:
            reason = self._iterate()
        self.stopping.settle()
        self._save(trains_on=False)  # before the evaluations, so that a run that is killed in them loses nothing
        if not reason:
            self._evaluate_at_the_end()
        if self.continuation is not None and not reason:
            self.meter.logger.note(f"the model continues: {self.continuation()}")
        return reason

    def _evaluate_at_the_end(self) -> None:
        target = self.recipe.evaluation.target_loss
        for split in self.evaluation.splits if self.evaluation else ():
            record = self._evaluate(split)
            if split == "valid" and record is not None and target is not None:
                self.meter.logger.note(verdict(target, record))

    def _iterate(self) -> str:
        """Take one step, then log, save and evaluate if due; return a reason to stop, or an empty string."""
        learning_rate, batch = self.engine.learning_rate, self.length.batch(self.progress)
        step = self._step(batch)
        if self.saving is not None:
            self.saving.poll()
        is_last = self.progress.iteration == self.length.iterations
        urgent_reason = self.stopping.reason()
        reason = urgent_reason or self._exit_interval(is_last=is_last)
        if is_last or reason or self._is_due(self.recipe.logging.log_interval):
            self._log(step, batch, learning_rate)
        if not is_last and (reason or self._is_due(self.recipe.checkpoint.save_interval)):
            self._save(trains_on=not reason)
        if not is_last and not urgent_reason and self._is_due(self.recipe.evaluation.interval):
            self._evaluate("valid")
        self.garbage.after(self.progress.iteration)
        return reason

    def _step(self, batch: int) -> Step:
        """Take one step over a global batch of so many samples, and count it."""
        timers, num_microbatches = self.meter.timers, self.length.layout.num_microbatches(batch)
        with timers.phase("interval"):
            step = self.engine.train_step(self.batches, num_microbatches, timers)
            if not step.skipped:
                self.engine.advance_schedule(batch)
        self.meter.interval.add(step, batch)
        self.progress.iteration += 1
        self.progress.consumed_samples += batch
        self.progress.skipped_iterations += step.skipped
        return step

    def _exit_interval(self, *, is_last: bool) -> str:
        """Return the reason if a part of the training ends here; the last iteration has none."""
        every = self.recipe.train.exit_interval
        return f"train.exit_interval {every}" if self._is_due(every) and not is_last else ""

    def _is_due(self, every: int | None) -> bool:
        return bool(every) and self.progress.iteration % (every or 1) == 0

    def _log(self, step: Step, batch: int, learning_rate: float) -> None:
        interval = self.meter.interval
        totals = interval.take()
        if is_broken(self.recipe, totals, interval):
            raise self._not_finite()
        check_loss_scale(self.recipe, self.engine, interval, self.progress)
        self.meter.log(totals, step, self.engine, self.progress, batch=batch, learning_rate=learning_rate)

    def _evaluate(self, split: Split) -> EvalRecord | None:
        if self.evaluation is None:
            return None
        with self.meter.phase("evaluation"):
            record = self.evaluation.run(split, self.progress.iteration)
        self.meter.logger.evaluation(record, self.progress.consumed_samples)
        self._resume_steps()
        return record

    def _save(self, *, trains_on: bool) -> None:
        if self.saving is None or self.saving.is_done(self.progress):
            return
        with self.meter.phase("save"):
            # With fewer logged lines than checkpoints, broken weights would be saved, and good ones removed.
            if not math.isfinite(self.engine.parameters_norm().item()):
                raise self._not_finite()
            saved = self.saving.save(self.engine, self.progress, trains_on=trains_on)
        if saved is not None:
            self.meter.logger.note(f"checkpoint: {saved}")
        self._resume_steps()

    def _not_finite(self) -> TrainingError:
        """Return the error, which names the latest checkpoint: the one that is being written, if it succeeds."""
        if self.saving is not None:
            self.saving.finish()
        return not_finite(self.meter.interval, self.progress, self.saving)

    def _resume_steps(self) -> None:
        self.garbage.collect()
        self.meter.interval.resume()
