"""Measurements between two logged lines, and the record that is logged of them."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.observe.records import TrainRecord
from pretrain.observe.timers import across_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from pretrain.engine.protocol import Engine, Step
    from pretrain.observe.throughput import Speedometer
    from pretrain.observe.timers import PhaseTimers
    from pretrain.recipe import Recipe
    from pretrain.training.progress import Progress
    from pretrain.training.reporting.interval import Interval, Totals
    from pretrain.training.reporting.run_logger import RunLogger


@dataclass(frozen=True, kw_only=True, slots=True)
class Meter:
    """Loss, time, speed and memory of the iterations since the last logged line.

    Attributes:
        recipe: what is trained.
        logger: where records go.
        timers: phase timers.
        interval: sums over the iterations.
        speedometer: turns an interval into throughput.
        device: where the engine's tensors are.
        memory_peak: bytes, or None where the device cannot tell.
    """

    recipe: Recipe
    logger: RunLogger
    timers: PhaseTimers
    interval: Interval
    speedometer: Speedometer
    device: torch.device
    memory_peak: Callable[[], int | None]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure a phase whose time is not the steps': an evaluation or a checkpoint."""
        self.interval.pause()
        with self.timers.phase(name):
            yield

    def log(
        self, totals: Totals, step: Step, engine: Engine, progress: Progress, *, batch: int, learning_rate: float
    ) -> None:
        """Log the interval and begin a new one; all ranks call it together.

        Args:
            totals: of the interval, whose clock is stopped.
            step: the last one.
            engine: took it.
            progress: after it.
            batch: its global batch, samples.
            learning_rate: that it was taken with.
        """
        self.logger.train(self._record(totals, step, engine, progress, batch, learning_rate))
        if self.recipe.logging.log_timers:
            spreads = across_ranks(self.timers.take(), self.interval.iterations, device=self.device)
            self.logger.timers(spreads, progress.iteration)
        self.interval.start()

    def _record(
        self, totals: Totals, step: Step, engine: Engine, progress: Progress, batch: int, learning_rate: float
    ) -> TrainRecord:
        interval = self.interval
        speed = self.speedometer.measure(
            iterations=interval.iterations, samples=interval.samples, seconds=interval.seconds
        )
        return TrainRecord(
            iteration=progress.iteration,
            consumed_samples=progress.consumed_samples,
            consumed_tokens=progress.consumed_samples * self.recipe.model.seq_length,
            lm_loss=totals.lm_loss,
            grad_norm=None if step.grad_norm is None else step.grad_norm.item(),
            learning_rate=learning_rate,
            loss_scale=engine.loss_scale if self.recipe.precision.dtype == "fp16" else None,
            global_batch_size=batch,
            skipped_iterations=interval.skipped_iterations,
            nan_iterations=totals.nan_iterations,
            seconds_per_iteration=speed.seconds_per_iteration,
            samples_per_second=speed.samples_per_second,
            tokens_per_second_per_device=speed.tokens_per_second_per_device,
            tflops_per_device=speed.tflops_per_device,
            mfu=speed.mfu,
            memory_peak_bytes=self.memory_peak(),
            params_norm=engine.parameters_norm().item() if self.recipe.logging.log_params_norm else None,
            num_zeros_in_grad=None if step.num_zeros_in_grad is None else int(step.num_zeros_in_grad),
        )
