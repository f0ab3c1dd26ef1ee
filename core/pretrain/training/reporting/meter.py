"""Measurements between two log lines, kept on the device without waiting for it, and the record that is logged."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from pretrain.model.requests import compute_dtype
from pretrain.report.flops import Speedometer, flops_per_sequence
from pretrain.report.metrics import EventRecord, TrainRecord
from pretrain.report.timers import PhaseTimers, across_ranks
from pretrain.training.reporting.stragglers import Stragglers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pretrain.engine.protocol import Engine, Step
    from pretrain.recipe import Recipe
    from pretrain.report.hang.position import Position
    from pretrain.training.event import GcControl
    from pretrain.training.progress import Progress
    from pretrain.training.rank_setup import RankSetup
    from pretrain.training.reporting.run_output import RunLogger
    from pretrain.training.reporting.stragglers import LocalClock, SlowRank


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """Result of an interval, equal on all ranks."""

    lm_loss: float | None  # mean over iterations not skipped whose loss was finite; None if there was none
    nan_iterations: int  # not skipped, and not finite on some rank


class Interval:
    """The iterations since the last logged line."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(3, device=device)  # finite losses, their number, losses that are not finite
        self._started = 0.0
        self.skipped_in_a_row = 0
        self.last_step: Step | None = None
        self.last_batch, self.last_learning_rate = 0, 0.0  # of the last step: its samples, and the rate of its update
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
        self.last_step, self.last_batch, self.last_learning_rate = step, samples, learning_rate
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Meter:
    """Loss, time, speed and memory of the iterations since the last logged line."""

    recipe: Recipe
    logger: RunLogger
    timers: PhaseTimers
    interval: Interval
    speedometer: Speedometer
    device: torch.device
    memory_peak: Callable[[], int | None]  # bytes; None where the device cannot tell
    garbage: GcControl  # collected where no step waits
    stragglers: Stragglers | None = None  # None: one rank alone, or switched off

    @classmethod
    def of(
        cls,
        setup: RankSetup,
        logger: RunLogger,
        position: Position,
        garbage: GcControl,
        clock: LocalClock | None,
        *,
        reads_data: bool,
    ) -> Meter:
        """Return the meter of a rank, whose timers move its position; `reads_data` says whether its stages read any."""
        recipe, backend, device = setup.recipe, setup.plugins.backend, setup.device
        wait = partial(synchronize, device) if recipe.logging.log_timers else None
        return cls(
            recipe=recipe,
            logger=logger,
            timers=PhaseTimers(synchronize=wait, position=position),
            interval=Interval(device),
            speedometer=Speedometer(
                seq_length=recipe.model.seq_length,
                flops_per_sequence=flops_per_sequence(recipe.model, setup.padded_vocab_size),
                world_size=setup.world.world_size,
                peak_flops=backend.peak_flops(compute_dtype(recipe)),
            ),
            device=device,
            memory_peak=lambda: backend.memory().peak,
            garbage=garbage,
            stragglers=None if clock is None else Stragglers(clock, reads_data=reads_data),
        )

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Stop the clock of the steps for an evaluation or a checkpoint; garbage is collected at its end."""
        self.interval.pause()
        yield
        self.garbage.collect()
        self.interval.resume()

    def log(self, totals: Totals, step: Step, engine: Engine, progress: Progress) -> None:
        """Log the interval, whose clock is stopped, and begin a new one; all ranks call it together."""
        seconds = self.timers.take()
        interval, slow = self.interval, []
        if self.stragglers is not None:
            pace = interval.seconds / interval.iterations
            slow = self.stragglers.of_interval(seconds["data"], interval.iterations, pace)
        self.logger.train(self._record(totals, step, engine, progress, slow[0] if slow else None))
        if self.recipe.logging.log_timers:
            spreads = across_ranks(seconds, self.interval.iterations, device=self.device)
            self.logger.timers(spreads, progress.iteration, progress.consumed_samples)
        self._warn(slow, progress)
        self.interval.start()

    def go_back(self, progress: Progress) -> None:
        """Begin a new interval at an earlier iteration; what was logged after it is dropped."""
        self.logger.go_back(progress)
        self.timers.take()
        self.interval.start()
        self.interval.skipped_in_a_row = 0

    def _warn(self, slow: Sequence[SlowRank], progress: Progress) -> None:
        if self.stragglers is None:
            return
        for slowest, text in self.stragglers.warnings(slow, self.interval.iterations):
            numbers = {"rank": slowest.rank, "slowdown": slowest.slowdown, "slowdown_cause": slowest.cause}
            self.logger.event(EventRecord(event="straggler", iteration=progress.iteration, text=text, numbers=numbers))

    def _record(
        self, totals: Totals, step: Step, engine: Engine, progress: Progress, slowest: SlowRank | None
    ) -> TrainRecord:
        interval = self.interval
        speed = self.speedometer.measure(
            iterations=interval.iterations, samples=interval.samples, seconds=interval.seconds
        )
        measured = self._of_interval(totals, slowest) | speed | self._of_last_step(step, engine)
        return TrainRecord(
            iteration=progress.iteration,
            consumed_samples=progress.consumed_samples,
            consumed_tokens=progress.consumed_samples * self.recipe.model.seq_length,
            metrics=measured,
        )

    def _of_interval(self, totals: Totals, slowest: SlowRank | None) -> dict[str, Any]:
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

    def _of_last_step(self, step: Step, engine: Engine) -> dict[str, Any]:
        return {
            "grad_norm": None if step.grad_norm is None else step.grad_norm.item(),
            "learning_rate": self.interval.last_learning_rate,
            "loss_scale": engine.loss_scale if self.recipe.precision.dtype == "fp16" else None,
            "global_batch_size": self.interval.last_batch,
            "params_norm": engine.parameters_norm().item() if self.recipe.logging.log_params_norm else None,
            **{name: value.tolist() if isinstance(value, Tensor) else value for name, value in step.metrics.items()},
        }


def synchronize(device: torch.device) -> None:
    """Wait until the device is idle; of a CPU torch's own function returns at once."""
    getattr(torch.get_device_module(device), "synchronize", torch.accelerator.synchronize)()
