"""A connection to a store that cannot make its user wait."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class LineLostError(Exception):
    """The store does not answer, or never did."""


class Line:
    """A store of torch.distributed behind a thread of its own.

    A client of TCPStore waits without end for a server whose process is stopped, whatever its timeout; here only the
    thread does. A line that is lost because an answer was late is found again when it comes.
    """

    def __init__(self, connect: Callable[[], Any]) -> None:
        """Begin to connect; `connect` returns the store, and may wait or raise."""
        self.connected = False
        self.lost = ""
        self._failed = False
        self._connect = connect
        self._questions: queue.SimpleQueue[tuple[Callable[[Any], Any], Future[Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True, name="doctor line").start()

    def send(self, key: str, text: str) -> None:
        """Write a value some time from now; a lost line forgets it."""
        self._questions.put((lambda store: store.set(key, text), Future()))

    def ask(self, question: Callable[[Any], T], patience: float) -> T:
        """Return the answer of the store.

        Args:
            question: called with the store, in the line's thread.
            patience: seconds, after which a store that was reached before counts as lost.

        Raises:
            LineLostError: it is not reached yet (`lost` is empty), or does not answer.
        """
        if self.lost:
            raise LineLostError(self.lost)
        answer: Future[Any] = Future()
        self._questions.put((question, answer))
        try:
            found: T = answer.result(patience if self.connected else 0.1)
        except TimeoutError:
            reason = f"no answer within {patience:g} s"
            if self.connected:
                self.lost = reason
            raise LineLostError(reason) from None
        except Exception as exc:  # whatever the store raises: its server has ended
            self.lost = _first_line(exc)
            raise LineLostError(self.lost) from exc
        return found

    def _serve(self) -> None:
        try:
            store = self._connect()
        except Exception as exc:  # noqa: BLE001  an unknown host, a port in use, no answer
            self.lost = _first_line(exc)
            return
        self.connected = True
        while not self._failed:
            question, answer = self._questions.get()
            try:
                found = question(store)
                self.lost = ""
                answer.set_result(found)
            except Exception as exc:  # noqa: BLE001
                self._failed, self.lost = True, _first_line(exc)
                answer.set_exception(exc)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
