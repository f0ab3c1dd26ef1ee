"""TCP store client whose calls time out, and the stores that ranks write to."""

from __future__ import annotations

import os
import queue
import threading
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.launch.world import World

T = TypeVar("T")


class CallThread:
    """A thread that makes calls in their order, with a device as its current one; the process does not wait for it."""

    def __init__(self, device: torch.device | None = None) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, args=(device,), daemon=True, name="doctor").start()

    def start(self, call: Callable[[], T]) -> Future[T]:
        """Make a call in the thread, after those before it."""
        future: Future[T] = Future()
        self._calls.put((call, future))
        return future

    def _work(self, device: torch.device | None) -> None:
        if device is not None:
            torch.get_device_module(device).set_device(device)
        while True:
            call, future = self._calls.get()
            try:
                future.set_result(call())
            except BaseException as exc:  # noqa: BLE001  whatever it is, also a library's sys.exit: a finding
                future.set_exception(exc)


class StoreLostError(Exception):
    """The store does not answer, or never did."""


class StoreClient:
    """A store of torch.distributed behind a thread of its own."""

    # A client of TCPStore waits without end for a server whose process is stopped, whatever its timeout; here only the
    # thread does. A store that is lost because an answer was late is found again when it comes.

    def __init__(self, connect: Callable[[], Any]) -> None:
        self.lost = ""
        self._failed = False
        self._store: Any = None
        self._thread = CallThread()
        self._thread.start(partial(self._connect, connect))

    @property
    def connected(self) -> bool:
        """True once the store was reached."""
        return self._store is not None

    def send(self, key: str, text: str) -> None:
        """Write a value some time from now; a lost store forgets it."""
        self._thread.start(partial(self._answer, lambda store: store.set(key, text)))

    def ask(self, question: Callable[[Any], T], patience: float) -> T:
        """Return the answer of the store to a question that is called with it, in the client's thread."""
        # StoreLostError is raised where it is not reached yet (`lost` is empty), or does not answer within `patience`
        # seconds; a store that was reached before counts as lost then.
        if self.lost:
            raise StoreLostError(self.lost)
        answer = self._thread.start(partial(self._answer, question))
        try:
            return answer.result(patience if self.connected else 0.1)
        except TimeoutError:
            reason = f"no answer within {patience:g} s"
            if self.connected:
                self.lost = reason
            raise StoreLostError(reason) from None
        except Exception as exc:  # whatever the store raises: its server has ended
            self.lost = self.lost or _first_line(exc)
            raise StoreLostError(self.lost) from exc

    def _connect(self, connect: Callable[[], Any]) -> None:
        try:
            self._store = connect()
        except Exception as exc:  # noqa: BLE001  an unknown host, a port in use, no answer
            self.lost = _first_line(exc)

    def _answer(self, question: Callable[[Any], T]) -> T:
        if self._failed or self._store is None:
            raise StoreLostError(self.lost)
        try:
            found = question(self._store)
        except Exception as exc:
            self._failed, self.lost = True, _first_line(exc)
            raise
        self.lost = ""
        return found


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


_CONNECT = timedelta(minutes=15)
"""The board counts the seconds of silence itself; the thread that connects may wait longer than that."""


def open_first(world: World, *, serves: bool) -> Any:
    """Return a connection to the store at the rendezvous of the ranks."""
    # The store is made here if `serves`, rank 0's first connection, unless another program already serves it.
    if world.world_size == 1:
        return dist.HashStore()  # type: ignore[attr-defined]  # torch's stub lacks it
    by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = serve(world.master_addr, world.master_port, serves=serves and not by_agent)
    # torchrun restarts ranks with the same store, which still holds what the ranks before them wrote.
    return prefixed(f"doctor {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def prefixed(prefix: str, store: Any) -> Any:
    """Return the store with a prefix to all of its keys."""
    return dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]


def serve(host: str, port: int, *, serves: bool = True) -> Any:
    """Return a store that is served here, on a free port if it is 0; or a connection to one, without `serves`."""
    return dist.TCPStore(host, port, is_master=serves, timeout=_CONNECT, wait_for_workers=False)  # type: ignore[attr-defined]
