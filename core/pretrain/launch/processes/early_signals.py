"""Signals to a process that is not ready for them: Ctrl-C ends its imports in silence, a request ends nothing.

It is imported before all else, and imports next to nothing.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # as in `pretrain.cli.main`
if TYPE_CHECKING:
    from types import FrameType

REPORT_SIGNAL, PROFILE_SIGNAL = signal.SIGUSR1, signal.SIGUSR2
REQUEST_SIGNALS = (REPORT_SIGNAL, PROFILE_SIGNAL)
"""Signals that end nothing: they ask for a report of all ranks, and for a profile of the next steps."""
HELD = (signal.SIGINT, *REQUEST_SIGNALS)
"""Signals that are blocked when the launcher starts a rank, until `handle_early_signals` is called there."""


def handle_early_signals() -> None:
    """Handle Ctrl-C and ignore requests in this process until a training does; a handler, or nohup's, stays."""
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _interrupt)
        for number in REQUEST_SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:
                # Not by a handler of Python: so also while the interpreter ends, and in programs that are started here.
                signal.signal(number, signal.SIG_IGN)
    except ValueError:  # a thread of another program called it
        return
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; end at once where a module is imported, as libraries make other errors of it there."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(128 + number)
        frame = frame.f_back
    raise KeyboardInterrupt
