"""Signals that ask a run to end while it has no ranks that they could be passed on to."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from pretrain.exit_codes import STOP_SIGNALS, of_signal

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def stop_signals_exit() -> Iterator[None]:
    """Have Ctrl-C, SIGTERM and SIGHUP raise SystemExit in a block: a back-off ends, and all is taken down.

    Signals that were ignored stay ignored. Must be entered in the main thread.
    """
    handled = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before: dict[int, Any] = {number: signal.signal(number, exit_with_signal) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_with_signal(number: int, _: object) -> NoReturn:
    """Leave this process as a shell reports the end by this signal: 128 + its number."""
    raise SystemExit(of_signal(number))
