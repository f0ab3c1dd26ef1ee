"""Supervision of ranks: signals (Ctrl-C, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2) are passed on, and one failure ends all."""

from __future__ import annotations

import dataclasses
import signal
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from pretrain.exit_codes import ENDED_AT_ONCE, STOP_SIGNALS, StopRequest, of_signal
from pretrain.launch.processes.early_signals import REQUEST_SIGNALS
from pretrain.launch.processes.failure import root_cause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from types import FrameType

    from pretrain.launch.processes.failure import Failure

_PERIOD = 0.05
_GRACE = 1.0
"""Seconds that the other ranks have to report their failures before they are killed: the first failure seen need not
be the first in time."""


class _Ranks(Protocol):
    """Ranks that this process started: `children.Processes` here, `remote_nodes.RemoteNodes` on other hosts."""

    def running(self) -> bool: ...
    def failures(self) -> list[Failure]: ...
    def told(self) -> list[Failure]: ...
    def stop(self) -> Failure | None: ...
    def send(self, number: int) -> None: ...
    def kill(self) -> None: ...


def supervise(
    ranks: _Ranks, poll: Callable[[], Failure | None] | None = None, *, failure_ends: bool = True
) -> Failure | None:
    """Wait in the main thread until all ranks have ended; return why the run failed or `stopped`, None if complete.

    Ctrl-C, SIGTERM or SIGHUP is passed on to the ranks, which save and exit; a second one kills them, and raises
    SystemExit with 128 + its number. A failure of ranks that were asked to end is `asked`. `poll`, called once a
    second, returns why another node has failed, which ends the ranks here; without `failure_ends` only that does.
    """
    with _passing_on(ranks) as stop:
        elsewhere = _wait_for_event(ranks, stop, poll or (lambda: None), failure_ends=failure_ends)
        if not stop.at_once and ranks.failures():
            _wait(ranks, _GRACE)
        failures = ranks.failures() + ([elsewhere] if elsewhere else [])
        if failures:  # of ranks that hang, perhaps, because one of those that still run has failed
            failures += ranks.told()
        ranks.kill()
        if failures:  # of nodes, perhaps, which have said more while they ended
            failures += ranks.told()
    if stop.at_once:
        sys.stderr.write(ENDED_AT_ONCE.format(signal.Signals(stop.number).name))
    if stop.at_once or (stop.number and failures and all(each.interrupted or each.lost_peer for each in failures)):
        raise SystemExit(of_signal(stop.number))
    cause = root_cause(failures) if failures else ranks.stop()
    return cause and dataclasses.replace(cause, asked=cause.asked or stop.number > 0)


@contextmanager
def _passing_on(ranks: _Ranks) -> Iterator[StopRequest]:
    stop = StopRequest()

    def pass_on(number: int, _: FrameType | None) -> None:
        if stop.take(number):
            # SIGHUP of a closed terminal becomes SIGTERM, on which the ranks save and exit.
            ranks.send(signal.SIGTERM if number == signal.SIGHUP else number)

    with _handled(REQUEST_SIGNALS, lambda number, _: ranks.send(number)), stop_signals_handled(pass_on):
        yield stop


def _wait_for_event(
    ranks: _Ranks, stop: StopRequest, poll: Callable[[], Failure | None], *, failure_ends: bool
) -> Failure | None:
    """Wait for the end of all ranks, the failure of one, or a second signal; return another node's failure."""
    asked = time.monotonic()
    while ranks.running() and not (failure_ends and ranks.failures()) and not stop.at_once:
        time.sleep(_PERIOD)
        if time.monotonic() - asked > 1:
            asked = time.monotonic()
            if elsewhere := poll():
                return elsewhere
    return None


def _wait(ranks: _Ranks, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while ranks.running() and time.monotonic() < deadline:
        time.sleep(_PERIOD)


def stop_signals_handled(handler: Callable[[int, Any], object]) -> AbstractContextManager[None]:
    """Have Ctrl-C, SIGTERM and SIGHUP call `handler` in a block of the main thread."""
    # Those that were ignored stay ignored: under nohup, or in a background job of a script, some are.
    return _handled([number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN], handler)


@contextmanager
def _handled(numbers: Iterable[signal.Signals], handler: Any) -> Iterator[None]:
    before: dict[int, Any] = {number: signal.signal(number, handler) for number in numbers}
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
