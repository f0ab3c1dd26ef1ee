"""Client of a TCP store whose calls time out, and its connection to the node that serves the store."""

from __future__ import annotations

import ipaddress
import queue
import socket
import sys
import threading
import time
import weakref
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch.distributed import DistError, PrefixStore, TCPStore  # type: ignore[attr-defined]

from pretrain.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.distributed import Store  # type: ignore[attr-defined]

_PATIENCE = 5.0  # seconds that the store gets for an answer
_SHORT_PATIENCE = 0.1
"""Seconds for an answer while the question before has none: a caller that asks again and again is not held up."""
_TRY = 5.0  # seconds for one try to connect
_PERIOD = 0.2
_NOTICE_AFTER = 5.0  # seconds


class StoreSilenceError(DistError):
    """A store that has not answered in time; perhaps it does later."""


class _StoreThread:
    """The thread that asks a store, one question after the other; a call into torch cannot be interrupted."""

    def __init__(self) -> None:
        self.broken: str | None = None  # why the connection is lost, for which there is no remedy
        self.silent = False  # a question was not answered in time, and still is not
        self.patience: float | None = None  # seconds for each answer, whatever was before
        self._questions: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        weakref.finalize(self, self._questions.put, None)
        # The thread knows this object only while it asks, so that it ends with its last user.
        threading.Thread(target=_ask, args=(self._questions, weakref.ref(self)), daemon=True, name="store").start()

    def ask(self, question: Callable[[], Any]) -> Any:
        if self.broken is not None:
            raise DistError(self.broken)
        answer: Future[Any] = Future()
        self._questions.put((question, answer))
        patience = (_SHORT_PATIENCE if self.silent else _PATIENCE) if self.patience is None else self.patience
        try:
            return answer.result(patience)  # signals are handled during this wait
        except TimeoutError:
            self.silent = True
            answer.cancel()
            msg = "the store does not answer"
            raise StoreSilenceError(msg) from None
        finally:
            del answer  # its error's traceback leads here: a cycle would keep the store and its port


def _ask(questions: queue.SimpleQueue[Any], thread_of: weakref.ref[_StoreThread]) -> None:
    while (asked := questions.get()) is not None:
        question, answer = asked
        thread = thread_of()
        if thread is not None and answer.set_running_or_notify_cancel():
            try:
                value = None if thread.broken else question()
            except Exception as error:  # noqa: BLE001  it is the asker's
                thread.broken = str(error) or type(error).__name__
            thread.silent = False
            if thread.broken is None:
                answer.set_result(value)
            else:
                answer.set_exception(DistError(thread.broken))
        del asked, question, answer, thread


class StoreClient:
    """Store whose calls raise `DistError` once the connection is lost, and `StoreSilenceError` if it is slow.

    Calls are those of torch's store, from any thread; keys that `get` reads must be there.
    """

    def __init__(self, store: Store, thread: _StoreThread | None = None) -> None:
        self._store = store
        self._thread = thread or _StoreThread()

    def within(self, prefix: str) -> StoreClient:
        """Return the store of the keys that begin with the prefix."""
        return StoreClient(PrefixStore(prefix, self._store), self._thread)

    @contextmanager
    def patient(self, seconds: float) -> Iterator[None]:
        """Give the store so long for each answer in a block whose caller has nothing else to do."""
        before, self._thread.patience = self._thread.patience, seconds
        try:
            yield
        finally:
            self._thread.patience = before

    def get(self, key: str) -> bytes:
        """Return the value of a key that is there."""
        return bytes(self._ask(lambda store: store.get(key)))

    def set(self, key: str, value: str) -> None:
        """Set a key."""
        self._ask(lambda store: store.set(key, value))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Return the values of keys that are there, by one question."""
        return [bytes(value) for value in self._ask(lambda store: store.multi_get(keys))] if keys else []

    def multi_set(self, values: dict[str, str]) -> None:
        """Set keys, by one question."""
        keys, texts = list(values), list(values.values())
        self._ask(lambda store: store.multi_set(keys, texts))  # type: ignore[attr-defined]  # torch's stubs miss it

    def check(self, keys: list[str]) -> bool:
        """Say whether all the keys are there."""
        return bool(self._ask(lambda store: store.check(keys)))

    def add(self, key: str, amount: int) -> int:
        """Return the counter after adding to it; it begins at 0."""
        return int(self._ask(lambda store: store.add(key, amount)))

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        """Set a key if it has the expected value, "" also for none; return what it has then."""
        return bytes(self._ask(lambda store: store.compare_set(key, expected, value)))

    def _ask(self, question: Callable[[Store], Any]) -> Any:
        store = self._store
        return self._thread.ask(lambda: question(store))


def connect(endpoint: tuple[str, int], timeout: timedelta) -> TCPStore:
    """Connect once; DistError if nothing answers there, or no store."""
    # A socket of its own first: the store's constructor waits for its timeout, and is deaf to signals meanwhile.
    try:
        socket.create_connection(endpoint, timeout=_TRY).close()
    except OSError as error:
        raise DistError(str(error)) from error
    store = TCPStore(*endpoint, is_master=False, timeout=timedelta(seconds=_TRY), wait_for_workers=False)
    store.set_timeout(timeout)
    return store


def connect_within(endpoint: tuple[str, int], timeout: timedelta) -> TCPStore:
    """Connect as soon as the store is there; DistError if it does not come in time."""
    begun = time.monotonic()
    notice = f"waiting for {endpoint[0]}:{endpoint[1]}, where nothing answers yet ...\n"
    while True:
        try:
            return connect(endpoint, timeout)
        except DistError as error:
            waited = time.monotonic() - begun
            if waited > timeout.total_seconds():
                msg = f"no answer within {timeout}: {str(error).splitlines()[0]}"
                raise DistError(msg) from error
            if notice and waited > _NOTICE_AFTER:
                sys.stderr.write(notice)
                notice = ""
        time.sleep(_PERIOD)


def is_served_again(endpoint: tuple[str, int], timeout: timedelta, notice: str, *, elsewhere: bool = False) -> bool:
    """Wait until a host that is cut off can be reached; return False if it never can, or nothing serves there now."""
    # Who serves `elsewhere` than on a node may be started again, so nothing there now may still become something.
    deadline = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < deadline:
        try:
            socket.create_connection(endpoint, timeout=_TRY).close()
        except OSError as error:
            if isinstance(error, ConnectionRefusedError) and not elsewhere:
                return False
            sys.stderr.write(notice)
            notice = ""
            time.sleep(_PERIOD)
        else:
            return True
    return False


def own_address(endpoint: tuple[str, int]) -> str:
    """Return the address by which others reach this machine: that towards the store, or the store's if it is here."""
    try:
        with socket.create_connection(endpoint, timeout=_TRY) as way:
            own, store = way.getsockname()[0], way.getpeername()[0]
    except OSError as error:
        raise DistError(str(error)) from error
    is_local = own == store or ipaddress.ip_address(own.partition("%")[0]).is_loopback  # a name of this machine
    return endpoint[0] if is_local else str(own)


def is_here(host: str) -> bool:
    """Say whether the host's address is one of this machine's, so that a socket can be bound to it."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    except OSError as exc:
        msg = f"--rdzv: this machine does not know the host '{host}' ({exc.strerror})."
        raise LaunchError(msg) from exc
    with socket.socket(family, kind) as probe:
        try:
            probe.bind(address)
        except OSError:
            return False
    return True
