"""Measurements between two logged lines, and the record that is logged of them."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from pretrain.report.records import EventRecord, TrainRecord
from pretrain.report.timers import across_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

    from pretrain.engine.protocol import Engine
    from pretrain.recipe import Recipe
    from pretrain.report.flops import Speedometer
    from pretrain.report.timers import PhaseTimers
    from pretrain.training.progress import Progress
    from pretrain.training.reporting.interval import Interval, TakenStep, Totals
    from pretrain.training.reporting.run_logger import RunLogger
    from pretrain.training.reporting.stragglers import SlowRank, Stragglers


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
        stragglers: names the slowest rank; None if there is one rank alone, or if it is switched off.
    """

    recipe: Recipe
    logger: RunLogger
    timers: PhaseTimers
    interval: Interval
    speedometer: Speedometer
    device: torch.device
    memory_peak: Callable[[], int | None]
    stragglers: Stragglers | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure a phase whose time is not the steps': an evaluation or a checkpoint."""
        self.interval.pause()
        with self.timers.phase(name):
            yield

    def log(self, totals: Totals, taken: TakenStep, engine: Engine, progress: Progress) -> None:
        """Log the interval and begin a new one; all ranks call it together.

        Args:
            totals: of the interval, whose clock is stopped.
            taken: its last step.
            engine: took it.
            progress: at its end.
        """
        seconds = self.timers.take()
        slow = self._slow_ranks(seconds["data"])
        self.logger.train(self._record(totals, taken, engine, progress, slow[0] if slow else None))
        if self.recipe.logging.log_timers:
            spreads = across_ranks(seconds, self.interval.iterations, device=self.device)
            self.logger.timers(spreads, progress.iteration)
        self._warn(slow, progress)
        self.interval.start()

    def go_back(self, progress: Progress) -> None:
        """Begin a new interval at an earlier iteration; what was logged after it is dropped."""
        self.logger.go_back(progress)
        self.timers.take()
        self.interval.start()
        self.interval.skipped_in_a_row = 0

    def _slow_ranks(self, data_seconds: float) -> list[SlowRank]:
        """Return the ranks that are behind the others, the slowest first; empty if it is switched off."""
        interval = self.interval
        if self.stragglers is None:
            return []
        return self.stragglers.of_interval(data_seconds, interval.iterations, interval.seconds / interval.iterations)

    def _warn(self, slow: Sequence[SlowRank], progress: Progress) -> None:
        if self.stragglers is None:
            return
        for slowest, text in self.stragglers.warnings(slow, self.interval.iterations):
            numbers = {"rank": slowest.rank, "slowdown": slowest.slowdown, "slowdown_cause": slowest.cause}
            self.logger.event(EventRecord(event="straggler", iteration=progress.iteration, text=text, numbers=numbers))

    def _record(
        self, totals: Totals, taken: TakenStep, engine: Engine, progress: Progress, slowest: SlowRank | None
    ) -> TrainRecord:
        interval = self.interval
        speed = self.speedometer.measure(
            iterations=interval.iterations, samples=interval.samples, seconds=interval.seconds
        )
        measured = self._of_interval(totals, slowest) | dataclasses.asdict(speed) | self._of_last_step(taken, engine)
        return TrainRecord(
            iteration=progress.iteration,
            consumed_samples=progress.consumed_samples,
            consumed_tokens=progress.consumed_samples * self.recipe.model.seq_length,
            metrics=measured,
        )

    def _of_interval(self, totals: Totals, slowest: SlowRank | None) -> dict[str, Any]:
        """Return the metrics of all iterations together, by the names of the table."""
        interval = self.interval
        return {
            "lm_loss": totals.lm_loss,
            "skipped_iterations": interval.skipped_iterations + interval.withheld_iterations,
            "nan_iterations": totals.nan_iterations,
            "memory_peak_bytes": self.memory_peak(),
            "slowest_rank": None if slowest is None else slowest.rank,
            "slowdown": None if slowest is None else slowest.slowdown,
            "slowdown_cause": None if slowest is None else slowest.cause,
        }

    def _of_last_step(self, taken: TakenStep, engine: Engine) -> dict[str, Any]:
        """Return the metrics of the last iteration, by the names of the table."""
        step = taken.step
        return {
            "grad_norm": None if step.grad_norm is None else step.grad_norm.item(),
            "learning_rate": taken.learning_rate,
            "loss_scale": engine.loss_scale if self.recipe.precision.dtype == "fp16" else None,
            "global_batch_size": taken.batch,
            "params_norm": engine.parameters_norm().item() if self.recipe.logging.log_params_norm else None,
            **{name: value.item() if isinstance(value, Tensor) else value for name, value in step.metrics.items()},
        }
