"""Requests for a report: SIGUSR1, and the folders in which other ranks ask."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from pretrain.report.hang.gathering import request_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType


_STOP = b"\0"


class ReportRequests:
    """Catches SIGUSR1; a context, entered in the main thread, that restores the handler before.

    Python runs a signal's handler in the main thread, which may hang. But it writes the signal's number to a file
    descriptor at once (`signal.set_wakeup_fd`), and another thread reads it there.
    """

    def __init__(self) -> None:
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


class Questions:
    """Finds folders in which another rank asks for all states, because of a hang or by SIGUSR1.

    A thread of its own looks for them: a disk that does not answer must not keep the watch from ending its rank.
    """

    def __init__(self, folder: Path, period: float, answer: Callable[[Path], None]) -> None:
        """Look every `period` seconds; `folder` exists once a rank hangs, those of SIGUSR1 are beside it."""
        self._folder, self._period, self._answer = folder, period, answer
        self._hang, self._end = threading.Event(), threading.Event()
        self._number = 0  # of the latest folder beside it
        self._own: set[Path] = set()
        self._answered = float("-inf")
        self._thread = threading.Thread(target=self._look, name="hang questions", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Stop looking, without waiting for the disk."""
        self._end.set()

    @property
    def asks_of_hang(self) -> bool:
        """True once a rank has asked because of a hang."""
        return self._hang.is_set()

    def ignore(self, folder: Path) -> None:
        """Do not answer in a folder in which this rank asks itself."""
        self._own.add(folder)

    def answered_within(self, seconds: float) -> bool:
        """Return whether another rank's SIGUSR1 was answered in the last so many seconds."""
        return time.monotonic() - self._answered < seconds

    def _look(self) -> None:
        while not self._end.wait(self._period):
            with suppress(Exception):  # a file server that was away for a moment; it looks again soon
                self._look_once()

    def _look_once(self) -> None:
        if not self._hang.is_set() and self._folder.exists():
            self._hang.set()
            self._answer(self._folder)
        following = request_folder(self._folder, self._number + 1)
        if not following.exists():
            return
        self._number += 1
        if following not in self._own:
            self._answered = time.monotonic()
            self._answer(following)
