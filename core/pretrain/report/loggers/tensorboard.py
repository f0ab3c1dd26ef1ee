"""Writes scalars for TensorBoard under Megatron's names; a full disk costs curves, not the training."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from pretrain.plugins import hookimpl
from pretrain.plugins.logger import Logger

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pretrain.plugins.logger import Metrics, Point, Run
    from pretrain.recipe import Recipe


@hookimpl
def pretrain_logger(recipe: Recipe, run: Run) -> Logger:
    """Return the logger of `logging.loggers: [tensorboard]`."""
    return TensorBoard(run, queue_size=recipe.logging.tensorboard_queue_size)


class TensorBoard(Logger):
    """Write event files below tensorboard/ of the run directory.

    The curves over samples ("lm loss vs samples") have their own folder, `samples`: a resumed run hides events after
    the checkpoint by a step number, which counts iterations in one folder and samples in the other.
    """

    def __init__(self, run: Run, *, queue_size: int = 1000) -> None:
        self._run, self._directory, self._has_warned = run, run.directory / "tensorboard", False
        self._iterations = EventFile(self._directory, queue_size, self._lose)
        self._samples = EventFile(self._directory / "samples", queue_size, self._lose)

    def start(self) -> None:
        """Open the files; a resumed run hides later events."""
        self._open(self._run.resumed)

    def go_back(self, to: Point) -> None:
        """Hide the events of later iterations, which the training will write again."""
        self.finish(failed=False)
        self._open(to)

    def _open(self, begin: Point | None) -> None:
        self._iterations.open(None if begin is None else begin.iteration + 1)
        self._samples.open(None if begin is None else begin.consumed_samples + 1)

    def metrics(self, metrics: Metrics) -> None:
        """Add a point to each curve."""
        for name, value in metrics.curves.items():
            self._iterations.add(name, value, metrics.iteration)
            if name in metrics.by_samples:
                self._samples.add(f"{name} vs samples", value, metrics.consumed_samples)

    def finish(self, *, failed: bool) -> None:  # noqa: ARG002  a logger's signature
        """Write the waiting events and close the files."""
        self._iterations.close()
        self._samples.close()

    def _lose(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            reason = getattr(error, "strerror", None) or error
            self._run.note(
                f"warning: {self._directory} cannot be written ({reason}). The training continues; TensorBoard's "
                "curves have a gap until it can be written again."
            )


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
