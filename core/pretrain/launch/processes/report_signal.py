"""SIGUSR1, which asks the ranks of a run to say what they are in; no process of a run ends by it."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

REPORT_SIGNAL = signal.SIGUSR1


def ignore_report_signal() -> None:
    """Ignore the signal in this process, and in those that it starts, until they handle it; a handler stays."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(REPORT_SIGNAL) is signal.SIG_DFL:
        signal.signal(REPORT_SIGNAL, signal.SIG_IGN)


@contextmanager
def children_ignoring_report_signal() -> Iterator[None]:
    """Have the processes that are started in a block begin with the signal ignored, before Python runs in them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(REPORT_SIGNAL, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(REPORT_SIGNAL, before)
