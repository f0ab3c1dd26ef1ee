"""The training loop: it knows an engine, batches, a journal, checkpoints and reasons to stop, and no device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.errors import TrainingError
from pretrain.observe.records import TrainRecord
from pretrain.observe.timers import across_ranks
from pretrain.training.target import verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from pretrain.engine.protocol import Batch, Engine, Step
    from pretrain.observe.records import EvalRecord
    from pretrain.observe.throughput import Speedometer
    from pretrain.observe.timers import PhaseTimers
    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout
    from pretrain.training.batch_sizes import BatchSizes
    from pretrain.training.evaluation import Evaluation, Split
    from pretrain.training.garbage import Garbage
    from pretrain.training.interval import Interval
    from pretrain.training.run_logger import Journal
    from pretrain.training.progress import Progress
    from pretrain.training.saving import Saving
    from pretrain.training.stopping import Stopping


HOPELESS = 50
"""Overflows in a row at the smallest loss scale after which a training is given up."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """One training from where `progress` is to its end, or to the first reason to stop.

    Attributes:
        recipe: what is trained.
        layout: sizes of the parallel groups.
        total_iterations: where the training ends.
        sizes: the global batch over the training.
        progress: counters, moved on in place.
        engine: takes the steps.
        batches: this rank's micro-batches from `progress` on; None where its stages read no data.
        evaluation: held-out loss; None if switched off.
        saving: writes checkpoints; None if switched off.
        stopping: reasons to leave early.
        garbage: collects Python's between steps.
        journal: where records go.
        timers: phase timers.
        interval: what is added up for the next record.
        speedometer: turns an interval into throughput.
        device: where the engine's tensors are.
        memory_peak: bytes, or None where the device cannot tell.
        continuation: continues the recipe's prompt at the end; None without one.
    """

    recipe: Recipe
    layout: Layout
    total_iterations: int
    sizes: BatchSizes
    progress: Progress
    engine: Engine
    batches: Iterator[Batch] | None
    evaluation: Evaluation | None
    saving: Saving | None
    stopping: Stopping
    garbage: Garbage
    journal: Journal
    timers: PhaseTimers
    interval: Interval
    speedometer: Speedometer
    device: torch.device
    memory_peak: Callable[[], int | None]
    continuation: Callable[[], str] | None

    def run(self) -> str:
        """Train; return why it ended before the last iteration, or an empty string when it did not."""
        reason = ""
        self.interval.start()
        while self.progress.iteration < self.total_iterations and not reason:
            reason = self._iterate()
        self.stopping.settle()
        self._save()  # before the evaluations, which may take long: who is killed there loses nothing
        if not reason:
            self._evaluate_at_the_end()
        if self.continuation is not None and not reason:
            self.journal.note(f"the model continues: {self.continuation()}")
        return reason

    def _evaluate_at_the_end(self) -> None:
        target = self.recipe.evaluation.target_loss
        for split in self.evaluation.splits if self.evaluation else ():
            record = self._evaluate(split)
            if split == "valid" and record is not None and target is not None:
                self.journal.note(verdict(target, record))

    def _iterate(self) -> str:
        """Take one step and do what is due after it; return why to leave, or an empty string."""
        global_batch_size = self.sizes.at(self.progress.consumed_samples)
        learning_rate = self.engine.learning_rate
        with self.timers.phase("interval"):
            step = self.engine.train_step(self.batches, self.layout.num_microbatches(global_batch_size), self.timers)
            if not step.skipped:
                self.engine.advance_schedule(global_batch_size)
        self.interval.add(step, global_batch_size)
        self.progress.iteration += 1
        self.progress.consumed_samples += global_batch_size
        self.progress.skipped_iterations += step.skipped
        is_last = self.progress.iteration == self.total_iterations
        hurry = self.stopping.reason()
        reason = hurry or self._exit_interval(is_last=is_last)
        if is_last or reason or self._is_due(self.recipe.logging.log_interval):
            self._log(step, global_batch_size, learning_rate)
        if not is_last and (reason or self._is_due(self.recipe.checkpoint.save_interval)):
            self._save()
        if not is_last and not hurry and self._is_due(self.recipe.evaluation.interval):
            self._evaluate("valid")
        self.garbage.after(self.progress.iteration)
        return reason

    def _exit_interval(self, *, is_last: bool) -> str:
        """Return that a part of the training ends here; one that is over has nothing left to leave."""
        every = self.recipe.train.exit_interval
        return f"train.exit_interval {every}" if self._is_due(every) and not is_last else ""

    def _is_due(self, every: int | None) -> bool:
        return bool(every) and self.progress.iteration % (every or 1) == 0

    def _log(self, step: Step, global_batch_size: int, learning_rate: float) -> None:
        totals = self.interval.take()
        # Without a loss scale DeepSpeed skips a step that megatron-core would take, with gradients that are not finite.
        broken = totals.nan_iterations or self.interval.skipped_iterations
        if self.recipe.precision.dtype != "fp16" and broken:
            raise TrainingError(self._not_finite())
        self._check_loss_scale()
        speed = self.speedometer.measure(
            iterations=self.interval.iterations, samples=self.interval.samples, seconds=self.interval.seconds
        )
        wants_norm = self.recipe.logging.log_params_norm
        self.journal.train(
            TrainRecord(
                iteration=self.progress.iteration,
                consumed_samples=self.progress.consumed_samples,
                consumed_tokens=self.progress.consumed_samples * self.recipe.model.seq_length,
                lm_loss=totals.lm_loss,
                grad_norm=None if step.grad_norm is None else step.grad_norm.item(),
                learning_rate=learning_rate,
                loss_scale=self.engine.loss_scale if self.recipe.precision.dtype == "fp16" else None,
                global_batch_size=global_batch_size,
                skipped_iterations=self.interval.skipped_iterations,
                nan_iterations=totals.nan_iterations,
                seconds_per_iteration=speed.seconds_per_iteration,
                samples_per_second=speed.samples_per_second,
                tokens_per_second_per_device=speed.tokens_per_second_per_device,
                tflops_per_device=speed.tflops_per_device,
                mfu=speed.mfu,
                memory_peak_bytes=self.memory_peak(),
                params_norm=self.engine.parameters_norm().item() if wants_norm else None,
                num_zeros_in_grad=None if step.num_zeros_in_grad is None else int(step.num_zeros_in_grad),
            )
        )
        if self.recipe.logging.log_timers:
            spreads = across_ranks(self.timers.take(), self.interval.iterations, device=self.device)
            self.journal.timers(spreads, self.progress.iteration)
        self.interval.start()

    def _evaluate(self, split: Split) -> EvalRecord | None:
        if self.evaluation is None:
            return None
        self.interval.pause()
        with self.timers.phase("evaluation"):
            record = self.evaluation.run(split, self.progress.iteration)
        self.journal.evaluation(record, self.progress.consumed_samples)
        self._go_on()
        return record

    def _save(self) -> None:
        if self.saving is None or self.saving.is_done(self.progress):
            return
        self.interval.pause()
        with self.timers.phase("save"):
            # With fewer logged lines than checkpoints, broken weights would be saved, and sound ones thinned out.
            if not math.isfinite(self.engine.parameters_norm().item()):
                raise TrainingError(self._not_finite())
            saved = self.saving.save(self.engine, self.progress)
        self.journal.note(f"checkpoint: {saved}")
        self._go_on()

    def _go_on(self) -> None:
        self.garbage.collect()
        self.interval.go_on()

    def _check_loss_scale(self) -> None:
        """Stop where step after step overflows and the loss scale cannot fall any more."""
        precision, skipped = self.recipe.precision, self.interval.skipped_in_a_row
        smallest = precision.min_loss_scale if precision.loss_scale is None else precision.loss_scale
        if skipped >= HOPELESS and self.engine.loss_scale <= smallest:
            msg = (
                f"the last {skipped} iterations up to {self.progress.iteration} overflowed and were skipped, at the "
                f"smallest loss scale, {smallest:g}.\nLower optimizer.lr, or train with precision.dtype: bf16."
            )
            raise TrainingError(msg)

    def _not_finite(self) -> str:
        latest = None if self.saving is None else self.saving.folder.latest()
        start = "There is no checkpoint." if latest is None else f"The latest checkpoint is iteration {latest}."
        return (
            f"loss, gradients or weights are not finite any more, within the {self.interval.iterations} iterations up "
            f"to {self.progress.iteration}. {start}\n"
            "Lower optimizer.lr or lengthen the warm-up, and start again from there."
        )
