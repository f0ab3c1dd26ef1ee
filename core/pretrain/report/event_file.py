"""TensorBoard's event files in one folder, which may be lost while a training goes on."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_FIRST_WAIT = 60.0
"""Seconds after a failure until a new file is tried; doubled by each one, since a failed try may leave a file."""


class _ScalarWriter(Protocol):
    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None: ...
    def close(self) -> None: ...


class EventFile:
    """Adds scalars; those for which a disk has no room are lost.

    A thread of TensorBoard's writes, and ends with its first error, which a later call raises. Another file follows
    then, when there may be room again. TensorFlow's errors, where it is installed, are no OSErrors: all are caught.
    """

    def __init__(self, folder: Path, queue_size: int, report: Callable[[Exception], None]) -> None:
        """Write nothing yet.

        Args:
            folder: made as needed.
            queue_size: most events that wait for the writing thread.
            report: takes each error.
        """
        self._folder, self._queue_size, self._report = folder, queue_size, report
        self._writer: _ScalarWriter | None = None
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
        """Add a scalar, which is lost where the file cannot be written."""
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
    """Have no traceback printed of an error of TensorBoard's thread, which `EventFile` reports."""
    before = threading.excepthook
    if getattr(before, "knows_event_files", False):
        return

    def hook(failed: Any) -> None:
        if not type(failed.thread).__module__.startswith("tensorboard."):
            before(failed)

    hook.knows_event_files = True  # type: ignore[attr-defined]
    threading.excepthook = hook
