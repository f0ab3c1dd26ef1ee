"""The training loop: steps, evaluations, checkpoints, and an end before the last iteration. It knows no device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.report.hang.position import BETWEEN, END, GENERATE, LOG
from pretrain.training.evaluation import verdict
from pretrain.training.safeguards.health import check_loss_scale, is_broken, not_finite

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.engine.protocol import Engine
    from pretrain.errors import NotFiniteError
    from pretrain.recipe import Recipe
    from pretrain.report.records import EvalRecord
    from pretrain.training.evaluation import Evaluation, Split
    from pretrain.training.gc_control import GcControl
    from pretrain.training.progress import Length, Progress
    from pretrain.training.reporting.meter import Meter, TakenStep
    from pretrain.training.reporting.stragglers import LocalClock
    from pretrain.training.safeguards.health import BrokenSince
    from pretrain.training.safeguards.replicas import ReplicaCheck
    from pretrain.training.safeguards.spike_response import SpikeResponse
    from pretrain.training.saving import Saving
    from pretrain.training.stopping import Stopping
    from pretrain.training.training_data import RewindableBatches, SkippedIterations


@dataclass(frozen=True, kw_only=True)
class Training:
    """Training from `progress` on, to its end or to the first reason to stop.

    Attributes:
        recipe: what is trained.
        length: iterations of the training, and the batch of each.
        progress: counters, moved on in place.
        engine: takes the steps.
        batches: this rank's micro-batches from `progress` on.
        left_out: iterations whose batches are passed over.
        evaluation: held-out loss; None if switched off.
        saving: writes checkpoints; None if switched off.
        stopping: reasons to leave early.
        garbage: collects Python's between steps.
        meter: measures and logs.
        continuation: continues the recipe's prompt at the end; None without one.
        spikes: answers losses that go wrong; None if they are not watched.
        replicas: compares the data-parallel replicas; None if they are not compared.
        broken: knows which ranks made values that are not finite; None in fp16, which recovers from them.
        clock: measures this rank's own work; None where nothing is made of it.
        evaluation_pending: the run was ended between the checkpoint that it goes on from and the evaluation of it.
    """

    recipe: Recipe
    length: Length
    progress: Progress
    engine: Engine
    batches: RewindableBatches
    left_out: SkippedIterations
    evaluation: Evaluation | None
    saving: Saving | None
    stopping: Stopping
    garbage: GcControl
    meter: Meter
    continuation: Callable[[], str] | None
    spikes: SpikeResponse | None = None
    replicas: ReplicaCheck | None = None
    broken: BrokenSince | None = None
    clock: LocalClock | None = None
    evaluation_pending: bool = False

    def run(self) -> str:
        """Train; return the reason if it stopped before the last iteration, else an empty string."""
        reason = ""
        self.meter.timers.position.enter(BETWEEN)
        self.meter.interval.start()
        if self.evaluation_pending and self.progress.iteration < self.length.iterations:
            self._evaluate("valid")
        while self.progress.iteration < self.length.iterations and not reason:
            reason = self._iterate()
        self.stopping.settle()
        self._save(trains_on=False)  # before the evaluations, so that a run that is killed in them loses nothing
        if not reason:
            self._evaluate_at_the_end()
        if self.continuation is not None and not reason:
            with self.meter.timers.position.during(GENERATE):
                self.meter.logger.note(f"the model continues: {self.continuation()}")
        self.meter.timers.position.enter(END)  # the report of a long run takes long
        return reason

    def _evaluate_at_the_end(self) -> None:
        target = self.recipe.evaluation.target_loss
        for split in self.evaluation.splits if self.evaluation else ():
            record = self._evaluate(split)
            if split == "valid" and record is not None and target is not None:
                self.meter.logger.note(verdict(target, record))

    def _iterate(self) -> str:
        """Take one step, then log, save and evaluate if due; return a reason to stop, or an empty string."""
        batch = self.length.batch(self.progress)
        if self.left_out.has_next():
            self._pass_over(batch)
        else:
            self._step(batch)
        if self.saving is not None:
            self.saving.poll()
        is_last = self.progress.iteration == self.length.iterations
        urgent_reason = self.stopping.reason()
        reason = urgent_reason or self._exit_interval(is_last=is_last)
        is_logged = is_last or bool(reason) or self._is_due(self.recipe.logging.log_interval)
        is_saved = not is_last and (bool(reason) or self._is_due_to_save())
        if self._abandons(is_due=is_logged or is_saved, is_leaving=bool(urgent_reason)):
            return urgent_reason
        self._compare_replicas()
        if is_logged:
            with self.meter.timers.position.during(LOG):
                self._log(self.meter.interval.last_step)
        if is_saved and self._save(trains_on=not reason):
            return ""
        if not is_last and not urgent_reason and self._is_due(self.recipe.evaluation.interval):
            self._evaluate("valid")
        self.garbage.after(self.progress.iteration)
        return "" if is_last else reason  # it came too late: the training is complete, and so is what follows

    def _step(self, batch: int) -> None:
        """Take one step over a global batch of so many samples, and count it."""
        timers, num_microbatches = self.meter.timers, self.length.layout.num_microbatches(batch)
        learning_rate = self.engine.learning_rate
        with timers.position.step(self.progress.iteration + 1), timers.phase("interval"):
            if self.clock is not None:
                self.clock.begin_step()
            step = self.engine.train_step(
                self.batches.following, num_microbatches, timers, self.spikes.keep_update if self.spikes else None
            )
            if self.clock is not None:
                self.clock.end_step()
            if not (step.skipped or step.withheld):
                self.engine.advance_schedule(batch)
        self.meter.interval.add(step, batch, learning_rate)
        if self.saving is not None:
            self.saving.count_step()
        self.progress.skipped_iterations += step.skipped
        self._count(batch)
        if self.broken is not None:
            self.broken.see(self.progress.iteration, step)
        if self.spikes is not None:
            self.spikes.see(step)

    def _pass_over(self, batch: int) -> None:
        """Read a global batch of so many samples, drop it, and count it; the clock of the steps stands still."""
        timers, position = self.meter.timers, self.meter.timers.position
        self.meter.interval.pause()
        position.iteration = self.progress.iteration + 1
        with timers.unmeasured(), position.during("data"):  # no waiting of a step; a rank that reads none moves too
            self.batches.pass_over(self.length.layout.num_microbatches(batch))
        self.meter.interval.resume()
        self._count(batch)

    def _count(self, batch: int) -> None:
        self.progress.iteration += 1
        self.progress.consumed_samples += batch

    def _abandons(self, *, is_due: bool, is_leaving: bool) -> bool:
        """Answer losses that have gone wrong; say whether the iteration, and others before it, are taken back.

        Args:
            is_due: whether a line or a checkpoint follows, before which all losses are judged.
            is_leaving: whether something outside asks the training to end after this iteration.
        """
        if self.spikes is None:
            return False
        if is_due:
            self.spikes.settle()
        return self.spikes.answer(is_leaving=is_leaving)

    def _compare_replicas(self) -> None:
        """Compare the data-parallel replicas if it is due; the clock of the steps stands still."""
        if self.replicas is None or not self.replicas.is_due(self.progress.iteration):
            return
        self.meter.interval.wait()
        self.meter.interval.pause()
        self.replicas.compare(self.progress.iteration)
        self.meter.interval.resume()

    def _is_due_to_save(self) -> bool:
        """Say whether a periodic checkpoint is due: none without a step since the latest one, whose weights it has."""
        return self._is_due(self.recipe.checkpoint.save_interval) and (self.saving is None or self.saving.has_new_step)

    def _exit_interval(self, *, is_last: bool) -> str:
        """Return the reason if a part of the training ends here; the last iteration has none."""
        every = self.recipe.train.exit_interval
        return f"train.exit_interval {every}" if self._is_due(every) and not is_last else ""

    def _is_due(self, every: int | None) -> bool:
        return bool(every) and self.progress.iteration % (every or 1) == 0

    def _log(self, taken: TakenStep | None) -> None:
        """Log the interval, whose last step is given; None if all of its batches were left out."""
        if taken is None:
            where = f"iteration {self.progress.iteration}/{self.length.iterations}"
            self.meter.logger.note(f"{where} | the batches since the last line were left out")
            return
        interval = self.meter.interval
        totals = interval.take()
        if is_broken(self.recipe, totals, interval):
            raise self._not_finite()
        check_loss_scale(self.recipe, self.engine, interval, self.progress)
        self.meter.log(totals, taken, self.engine, self.progress)

    def _evaluate(self, split: Split) -> EvalRecord | None:
        if self.evaluation is None:
            return None
        with self.meter.phase("evaluation"):
            record = self.evaluation.run(split, self.progress.iteration)
        self.meter.logger.evaluation(record, self.progress.consumed_samples)
        self._resume_steps()
        return record

    def _save(self, *, trains_on: bool) -> bool:
        """Write a checkpoint, unless there is one of this iteration; return whether weights were taken back instead."""
        if self.saving is None or self.saving.is_done(self.progress):
            return False
        with self.meter.phase("save"):
            # With fewer logged lines than checkpoints, broken weights would be saved, and good ones removed.
            is_finite = math.isfinite(self.engine.parameters_norm().item())
            saved = self.saving.save(self.engine, self.progress, trains_on=trains_on) if is_finite else None
        if not is_finite and not (trains_on and self.spikes is not None and self.spikes.takes_back_weights()):
            raise self._not_finite()
        if saved is not None:
            self.meter.logger.note(f"checkpoint: {saved}")
        self._resume_steps()
        return not is_finite

    def _not_finite(self) -> NotFiniteError:
        """Return the error, which names the latest checkpoint: the one that is being written, if it succeeds."""
        if self.saving is not None:
            self.meter.timers.position.enter(END)  # the checkpoint may take long
            self.saving.finish()
        since = "" if self.broken is None else self.broken.in_words()
        return not_finite(self.meter.interval, self.progress, self.saving, since)

    def _resume_steps(self) -> None:
        self.garbage.collect()
        self.meter.interval.resume()
