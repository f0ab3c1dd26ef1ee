"""Client of a TCP store that answers within a time, or raises: a store that hangs must not make a launcher deaf."""

from __future__ import annotations

import queue
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch.distributed import DistError, PrefixStore  # type: ignore[attr-defined]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta

    from torch.distributed import Store  # type: ignore[attr-defined]

_PATIENCE = 5.0
"""Seconds that the store gets for an answer."""
_SHORT_PATIENCE = 0.1
"""Seconds for an answer while the question before has none: a caller that asks again and again is not held up."""


class StoreSilenceError(DistError):
    """A store that has not answered in time; perhaps it does later."""


class _Answer:
    def __init__(self) -> None:
        self.there = threading.Event()
        self.wanted = True
        self.value: Any = None
        self.problem: str | None = None


class _Line:
    """The thread that asks a store, one question after the other; a call into torch cannot be interrupted.

    Attributes:
        broken: why the connection is lost, for which there is no remedy; None so far.
        silent: a question was not answered in time, and still is not.
        patience: seconds for each answer, whatever was before; None: those that the caller gives.
    """

    def __init__(self) -> None:
        self.broken: str | None = None
        self.silent = False
        self.patience: float | None = None
        self._questions: queue.SimpleQueue[tuple[Callable[[], Any], _Answer] | None] = queue.SimpleQueue()
        weakref.finalize(self, self._questions.put, None)
        # The thread knows the line only while it asks, so that the line ends with its last user.
        threading.Thread(target=_ask, args=(self._questions, weakref.ref(self)), daemon=True, name="store").start()

    def ask(self, question: Callable[[], Any], seconds: float) -> Any:
        if self.broken is not None:
            raise DistError(self.broken)
        answer = _Answer()
        self._questions.put((question, answer))
        patience = (_SHORT_PATIENCE if self.silent else seconds) if self.patience is None else self.patience
        # Signals are handled during this wait.
        if not answer.there.wait(patience):
            answer.wanted, self.silent = False, True
            msg = "the store does not answer"
            raise StoreSilenceError(msg)
        if answer.problem is not None:
            raise DistError(answer.problem)
        return answer.value


def _ask(questions: queue.SimpleQueue[Any], line_of: weakref.ref[_Line]) -> None:
    while (asked := questions.get()) is not None:
        question, answer = asked
        line = line_of()
        if answer.wanted and line is not None and line.broken is None:
            try:
                answer.value = question()
            except TimeoutError as error:
                answer.problem = str(error)
            except Exception as error:  # noqa: BLE001  it is the asker's
                answer.problem = line.broken = str(error) or type(error).__name__
            line.silent = False
        elif line is not None:
            answer.problem = line.broken
        answer.there.set()
        del asked, question, answer, line


class BoundedStore:
    """Store whose calls raise `DistError` once the connection is lost, and `StoreSilenceError` if it is slow.

    Calls are those of torch's store, from any thread; keys that `get` reads must be there.
    """

    def __init__(self, store: Store, line: _Line | None = None) -> None:
        """Take over a connected store; `line` is given if another one shares its connection."""
        self._store = store
        self._line = line or _Line()

    def within(self, prefix: str) -> BoundedStore:
        """Return the store of the keys that begin with the prefix."""
        return BoundedStore(PrefixStore(prefix, self._store), self._line)

    @contextmanager
    def patient(self, seconds: float) -> Iterator[None]:
        """Give the store so long for each answer in a block whose caller has nothing else to do."""
        self._line.patience = seconds
        try:
            yield
        finally:
            self._line.patience = None

    def get(self, key: str) -> bytes:
        """Return the value of a key that is there."""
        return bytes(self._ask(lambda store: store.get(key)))

    def set(self, key: str, value: str) -> None:
        """Set a key."""
        self._ask(lambda store: store.set(key, value))

    def check(self, keys: list[str]) -> bool:
        """Say whether all the keys are there."""
        return bool(self._ask(lambda store: store.check(keys)))

    def add(self, key: str, amount: int) -> int:
        """Return the counter after adding to it; it begins at 0."""
        return int(self._ask(lambda store: store.add(key, amount)))

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        """Set a key if it has the expected value, "" also for none; return what it has then."""
        return bytes(self._ask(lambda store: store.compare_set(key, expected, value)))

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """Wait until the keys are there.

        Raises:
            DistError: they are not in time, too.
        """

        def waited(store: Store) -> None:
            try:
                store.wait(keys, timeout)
            except DistError as error:
                raise TimeoutError(str(error)) from None  # the connection is as good as before

        self._ask(waited, timeout.total_seconds() + _PATIENCE)

    def _ask(self, question: Callable[[Store], Any], seconds: float | None = None) -> Any:
        store = self._store
        return self._line.ask(lambda: question(store), _PATIENCE if seconds is None else seconds)
