"""Signals of a run: SIGUSR1 asks for a report; Ctrl-C, SIGTERM and SIGHUP end it."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from pretrain.exit_codes import STOP_SIGNALS, of_signal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager


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


@contextmanager
def stop_signals_handled(handler: Callable[[int, Any], object]) -> Iterator[None]:
    """Have Ctrl-C, SIGTERM and SIGHUP call `handler` in a block of the main thread."""
    # Those that were ignored stay ignored: under nohup, or in a background job of a script, some are.
    handled = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before: dict[int, Any] = {number: signal.signal(number, handler) for number in handled}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def stop_signals_exit() -> AbstractContextManager[None]:
    """Have Ctrl-C, SIGTERM and SIGHUP raise SystemExit in a block: a back-off ends, and all is taken down."""
    return stop_signals_handled(exit_with_signal)


def exit_with_signal(number: int, _: object) -> NoReturn:
    """Leave this process as a shell reports the end by this signal: 128 + its number."""
    raise SystemExit(of_signal(number))
