"""Writes scalars for TensorBoard under Megatron's names; a full disk costs curves, not the training."""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Any

from pretrain.report.metric_table import METRICS
from pretrain.report.metrics import with_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pretrain.report.metrics import EvalRecord, TaskRecord, TrainRecord
    from pretrain.report.timers import Spread


class TensorBoard:
    """Write event files below a run directory. Made on rank 0 only.

    The curves over samples ("lm loss vs samples") have their own folder, `samples`: a resumed run hides events after
    the checkpoint by a step number, which counts iterations in one folder and samples in the other.
    """

    def __init__(
        self,
        directory: Path,
        *,
        warn: Callable[[str], None],
        queue_size: int = 1000,
        resume_at: int | None = None,
        resume_samples: int = 0,
    ) -> None:
        """Open the files; a resumed run hides later events. `warn` is told once if they cannot be written."""
        self._directory, self._warn, self._has_warned = directory, warn, False
        self._iterations = EventFile(directory, queue_size, self._lose)
        self._samples = EventFile(directory / "samples", queue_size, self._lose)
        self._open(resume_at, resume_samples)

    def go_back(self, iteration: int, samples: int) -> None:
        """Hide the events of later iterations, which the training will write again."""
        self.close()
        self._open(iteration, samples)

    def _open(self, resume_at: int | None, resume_samples: int) -> None:
        self._iterations.open(None if resume_at is None else resume_at + 1)
        self._samples.open(None if resume_at is None else resume_samples + 1)

    def train(self, record: TrainRecord) -> None:
        """Add a logged interval."""
        for metric in METRICS:
            if tag := metric.tensorboard:
                samples = record.consumed_samples if tag.over_samples else None
                value = record.metrics[metric.name]
                if metric.over_layers is None:
                    self._add(tag.name, value, record.iteration, samples)
                    continue
                for number, of_layer in enumerate(value or (), 1):
                    if not math.isnan(of_layer):  # a layer without experts
                        self._add(f"{tag.name}/layer {number}", of_layer, record.iteration, samples)

    def evaluation(self, record: EvalRecord, consumed_samples: int) -> None:
        """Add loss and perplexity of one split."""
        tag = {"valid": "lm loss validation", "test": "lm loss test"}[record.split]
        self._add(tag, record.lm_loss, record.iteration, consumed_samples)
        self._add(f"{tag} ppl", record.ppl, record.iteration, consumed_samples)

    def task(self, record: TaskRecord) -> None:
        """Add the numbers of a task, without their standard errors."""
        for name, value, _ in with_errors(record.metrics):
            self._add(f"tasks/{record.task} {name}", value, record.iteration)

    def timers(self, spreads: Mapping[str, Spread], iteration: int) -> None:
        """Add the slowest rank's time of each phase in milliseconds, as "forward-backward-time"."""
        for name, (_, slowest) in spreads.items():
            self._add(f"{name}-time", slowest, iteration)

    def close(self) -> None:
        """Write the waiting events and close the files."""
        self._iterations.close()
        self._samples.close()

    def _lose(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            reason = getattr(error, "strerror", None) or error
            self._warn(
                f"warning: {self._directory} cannot be written ({reason}). The training continues; TensorBoard's "
                "curves have a gap until it can be written again."
            )

    def _add(self, tag: str, value: float | None, iteration: int, samples: int | None = None) -> None:
        if value is None:
            return
        self._iterations.add(tag, value, iteration)
        if samples is not None:
            self._samples.add(f"{tag} vs samples", value, samples)


_FIRST_WAIT = 60.0
"""Seconds after a failure until a new file is tried; doubled by each one, since a failed try may leave a file."""


class EventFile:
    """Event files in one folder; scalars that cannot be written are lost.

    A thread of TensorBoard writes, and ends with its first error, which a later call raises. A new file is tried later.
    TensorFlow's errors, if it is installed, are not OSErrors: all are caught.
    """

    def __init__(self, folder: Path, queue_size: int, report: Callable[[Exception], None]) -> None:
        self._folder, self._queue_size, self._report = folder, queue_size, report
        self._writer: Any = None  # a SummaryWriter
        self._wait, self._tried = 0.0, 0.0

    def open(self, purge_step: int | None) -> None:
        """Begin a file, which hides the events of earlier ones from this step on."""
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  slow to import, and optional

        _silence_writing_thread()
        try:
            self._writer = SummaryWriter(str(self._folder), max_queue=self._queue_size, purge_step=purge_step)
        except Exception as error:  # noqa: BLE001
            self._fail(error)

    def add(self, tag: str, value: float, step: int) -> None:
        """Add a scalar; it is lost if the file cannot be written."""
        if self._writer is None and time.monotonic() >= self._tried + self._wait:
            self.open(step)
        if self._writer is None:
            return
        try:
            self._writer.add_scalar(tag, value, step)
        except Exception as error:  # noqa: BLE001
            self._fail(error)

    def close(self) -> None:
        """Write the events that wait, and close the file."""
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                writer.close()
        except Exception as error:  # noqa: BLE001
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._writer = None
        self._wait, self._tried = 2 * self._wait or _FIRST_WAIT, time.monotonic()
        self._report(error)


def _silence_writing_thread() -> None:
    """Print no traceback of errors in TensorBoard's thread, which `EventFile` reports."""
    before = threading.excepthook
    if getattr(before, "knows_event_files", False):
        return

    def hook(failed: Any) -> None:
        if not type(failed.thread).__module__.startswith("tensorboard."):
            before(failed)

    hook.knows_event_files = True  # type: ignore[attr-defined]
    threading.excepthook = hook
