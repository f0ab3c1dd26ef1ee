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
_IGNORED = "{name} is ignored: no training runs here at the moment. Send it while steps are logged.\n"


def handle_early_signals(*, tells: bool = True) -> None:
    """Handle Ctrl-C and requests in this process until a training does; a handler, or nohup's, stays."""
    own = (signal.SIGINT, signal.default_int_handler, _interrupt)
    requests = [(number, signal.SIG_DFL, _tell if tells else _pass) for number in REQUEST_SIGNALS]
    try:
        for number, default, handler in (own, *requests):
            if signal.getsignal(number) is default:
                signal.signal(number, handler)
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


def _tell(number: int, _frame: FrameType | None) -> None:
    os.write(2, _IGNORED.format(name=signal.Signals(number).name).encode())


def _pass(_number: int, _frame: FrameType | None) -> None:
    pass
