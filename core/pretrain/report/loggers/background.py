"""Calls a logger from a thread of its own: no step waits for it, and what it raises ends no training."""

from __future__ import annotations

import threading
import time
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from pretrain.errors import PretrainError, RunError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pretrain.plugins.logger import LoggedEvent, Logger, Metrics, Point

    Call = Callable[[], None]

MOST_WAITING = 1000
"""Calls that wait for a slow logger; metrics and events beyond are lost."""

START_SECONDS, FINISH_SECONDS, FAILED_SECONDS = 120.0, 60.0, 5.0
"""The longest that a run waits for a logger: before its first step (W&B itself gives up after 90 s), after its last
one, and after an error of either."""

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
        """Start the logger and wait for it; where it is required, a RunError says why it could not be."""
        begun: SimpleQueue[Exception | None] = SimpleQueue()
        work = partial(self._work, begun, is_required=is_required)
        self._thread = threading.Thread(target=work, name=f"pretrain-logger-{self._name}", daemon=True)
        self._thread.start()
        try:
            error = begun.get(timeout=START_SECONDS)
        except Empty:
            self._tell("it has not started yet, and may still do so")
            return
        if error is not None and is_required:
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

    def finish(self, *, failed: bool) -> None:
        """Finish the logger, and wait for it a while; may be called twice."""
        if self._thread is None or not self._thread.is_alive():
            return
        self._calls.put(partial(self._logger.finish, failed=failed))
        self._calls.put(None)
        until = time.monotonic() + (FAILED_SECONDS if failed else FINISH_SECONDS)
        self._thread.join(FAILED_SECONDS)
        while self._thread.is_alive() and not self._is_failing and time.monotonic() < until:
            self._thread.join(0.2)
        if self._thread.is_alive():
            self._tell("it does not finish; what it has not sent by now may be missing")

    def _put(self, call: Call) -> None:
        if self._calls.qsize() < MOST_WAITING:
            self._calls.put(call)
        else:
            self._tell(f"it is {MOST_WAITING} records behind, and loses further ones until it has caught up")

    def _work(self, begun: SimpleQueue[Exception | None], *, is_required: bool) -> None:
        error = self._error_of(self._start)
        begun.put(error)
        if error is not None and is_required:
            return
        while True:
            if error is not None:
                self._tell(f"{_cause(error)}. What it cannot take is lost", once="failure")
            call = self._calls.get()
            if call is None:
                return
            if self._is_started or time.monotonic() >= self._next_start:
                error = self._error_of(call)

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


def _cause(error: Exception) -> str:
    """Return an exception as one line of at most 300 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return (text if len(text) <= 300 else f"{text[:297]}...").rstrip(".")
