"""Calls a logger from a thread of its own: no step waits for it, and what it raises ends no training."""

from __future__ import annotations

import threading
import time
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from pretrain.errors import PretrainError, RunError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pretrain.plugins.logger import LoggedEvent, Logger, Metrics, Point

    Call = Callable[[], None]

MOST_WAITING = 1000
"""Calls that wait for a slow logger; metrics and events beyond are lost."""

START_SECONDS, FINISH_SECONDS, FAILED_SECONDS = 120.0, 60.0, 5.0
"""The longest that a run waits: before its first step for each logger (W&B itself gives up after 90 s), after its last
one for all together, and after an error of either."""

RETRY_SECONDS = 60.0
"""Time after which the start of a logger is tried again, in a resumed run that could not start it."""


class Background:
    """A logger in a daemon thread. `note` is called from that thread too."""

    def __init__(self, name: str, logger: Logger, note: Callable[[str], None]) -> None:
        self._name, self._logger, self._note = name, logger, note
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._is_started = self._is_failing = False
        self._told: set[str] = set()
        self._next_start = 0.0
        self._thread: threading.Thread | None = None

    def start(self, *, is_required: bool) -> None:
        """Start the logger and wait for it; where it is required, a RunError says why it could not be.

        One that takes longer is required no more: if it fails later, that is a warning, and it is tried again.
        """
        begun: SimpleQueue[Exception | None] = SimpleQueue()
        work, name = partial(self._work, begun), f"pretrain-logger-{self._name}"
        self._thread = threading.Thread(target=work, name=name, daemon=True)
        self._thread.start()
        try:
            error = begun.get(timeout=START_SECONDS)
        except Empty:
            self._tell("it has not started yet, and may still do so")
            return
        if error is not None and is_required:
            self._calls.put(None)
            raise self._not_started(error)

    def metrics(self, metrics: Metrics) -> None:
        """Hand over `Logger.metrics`."""
        self._put(partial(self._logger.metrics, metrics))

    def event(self, event: LoggedEvent) -> None:
        """Hand over `Logger.event`."""
        self._put(partial(self._logger.event, event))

    def artifact(self, file: Path) -> None:
        """Hand over `Logger.artifact`."""
        self._put(partial(self._logger.artifact, file))

    def go_back(self, to: Point) -> None:
        """Hand over `Logger.go_back`, which is never left out."""
        self._calls.put(partial(self._logger.go_back, to))

    def ask_to_finish(self, *, failed: bool) -> None:
        """Hand over `Logger.finish`, the last call."""
        self._calls.put(partial(self._logger.finish, failed=failed))
        self._calls.put(None)

    def wait(self, since: float, *, failed: bool) -> None:
        """Wait for the end of a logger that was asked to finish at this time of time.monotonic()."""
        if self._thread is None:
            return
        while self._thread.is_alive():
            seconds = FAILED_SECONDS if failed or self._is_failing else FINISH_SECONDS
            if time.monotonic() >= since + seconds:
                self._note(f"warning: logger {self._name}: it does not finish; what it has not sent may be missing.")
                return
            self._thread.join(min(0.1, seconds))

    def _put(self, call: Call) -> None:
        if self._calls.qsize() < MOST_WAITING:
            self._calls.put(call)
        else:
            self._tell(f"it is {MOST_WAITING} records behind, and loses further ones until it has caught up")

    def _work(self, begun: SimpleQueue[Exception | None]) -> None:
        error = self._error_of(self._start)
        begun.put(error)
        for call in iter(self._calls.get, None):
            self._tell_failure(error)  # that of the start: with the first call the training goes on in spite of it
            if self._is_started or time.monotonic() >= self._next_start:
                error = self._error_of(call)
                self._tell_failure(error)

    def _start(self) -> None:
        self._next_start = time.monotonic() + RETRY_SECONDS
        self._logger.start()
        self._is_started = True

    def _error_of(self, call: Call) -> Exception | None:
        """Call, after a start that is due; return what it raises, which is never the training's error."""
        try:
            if not self._is_started and call != self._start:
                self._start()
            call()
        except Exception as error:  # noqa: BLE001
            self._is_failing = True
            return error
        self._is_failing = False
        return None

    def _tell_failure(self, error: Exception | None) -> None:
        if error is not None:
            self._tell(f"{_cause(error)}. What it cannot take is lost", once="failure")

    def _tell(self, what: str, once: str = "") -> None:
        """Show a warning, of each text or kind the first."""
        if (once or what) not in self._told:
            self._told.add(once or what)
            self._note(f"warning: logger {self._name}: {what}. The training continues.")

    def _not_started(self, error: Exception) -> PretrainError:
        if isinstance(error, PretrainError):
            return error
        msg = (
            f"logging.loggers: {self._name} cannot start: {_cause(error)}\n"
            "Mend it, or train without it: leave it out of logging.loggers."
        )
        failure = RunError(msg)
        failure.__cause__ = error
        return failure


def finish(loggers: Sequence[Background], *, failed: bool) -> None:
    """Finish loggers, all at the same time, and wait a while for all of them together."""
    since = time.monotonic()
    for logger in loggers:
        logger.ask_to_finish(failed=failed)
    for logger in loggers:
        logger.wait(since, failed=failed)


def _cause(error: Exception) -> str:
    """Return an exception as one line of at most 300 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return (text if len(text) <= 300 else f"{text[:297]}...").rstrip(".")
