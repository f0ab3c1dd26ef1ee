"""SIGUSR1, read by a thread while the main thread is inside a library."""

from __future__ import annotations

import os
import select
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import FrameType

_STOP = b"\0"


class ReportRequests:
    """The arrivals of SIGUSR1; a context, entered in the main thread, that restores what was before.

    Python runs a signal's handler in the main thread, which hangs perhaps. But it writes the signal's number to a file
    descriptor at once (`signal.set_wakeup_fd`), and another thread reads it there.
    """

    def __init__(self) -> None:
        """Make the pipe; nothing is caught yet."""
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        os.set_blocking(self._read, False)
        self._before: Any = None
        self._wakeup_before: int | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            self._before = signal.signal(signal.SIGUSR1, _note)
            signal.siginterrupt(signal.SIGUSR1, False)  # no system call of a library fails by it
        return self

    def __exit__(self, *_error: object) -> None:
        if self._wakeup_before is not None:
            if self._before is not None:  # else it was set by C code, which Python cannot give back
                signal.signal(signal.SIGUSR1, self._before)
            signal.set_wakeup_fd(self._wakeup_before)
            self._wakeup_before = None

    def wait(self, seconds: float) -> bool | None:
        """Wait for a request; return True for one, False for none within the time, None after `stop`."""
        select.select([self._read], [], [], seconds)
        try:
            arrived = os.read(self._read, 4096)
        except BlockingIOError:
            return False
        if _STOP in arrived:
            return None
        return bytes([signal.SIGUSR1]) in arrived

    def stop(self) -> None:
        """Let `wait` return None, in whatever thread it is."""
        with suppress(BlockingIOError):  # a full pipe wakes it too
            os.write(self._write, _STOP)

    def close(self) -> None:
        """Close the pipe; nobody waits any more."""
        os.close(self._read)
        os.close(self._write)


def _note(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the number is in the pipe already."""
