"""TCP store client whose calls time out, and the stores that ranks write to."""

from __future__ import annotations

import os
import queue
import socket
import threading
from concurrent.futures import Future
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.launch.world import World


T = TypeVar("T")


class StoreLostError(Exception):
    """The store does not answer, or never did."""


class StoreClient:
    """A store of torch.distributed behind a thread of its own.

    A client of TCPStore waits without end for a server whose process is stopped, whatever its timeout; here only the
    thread does. A store that is lost because an answer was late is found again when it comes.
    """

    def __init__(self, connect: Callable[[], Any]) -> None:
        """Begin to connect; `connect` returns the store, and may wait or raise."""
        self.connected = False
        self.lost = ""
        self._failed = False
        self._connect = connect
        self._questions: queue.SimpleQueue[tuple[Callable[[Any], Any], Future[Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True, name="doctor store").start()

    def send(self, key: str, text: str) -> None:
        """Write a value some time from now; a lost store forgets it."""
        self._questions.put((lambda store: store.set(key, text), Future()))

    def ask(self, question: Callable[[Any], T], patience: float) -> T:
        """Return the answer of the store.

        Args:
            question: called with the store, in the client's thread.
            patience: seconds, after which a store that was reached before counts as lost.

        Raises:
            StoreLostError: it is not reached yet (`lost` is empty), or does not answer.
        """
        if self.lost:
            raise StoreLostError(self.lost)
        answer: Future[Any] = Future()
        self._questions.put((question, answer))
        try:
            found: T = answer.result(patience if self.connected else 0.1)
        except TimeoutError:
            reason = f"no answer within {patience:g} s"
            if self.connected:
                self.lost = reason
            raise StoreLostError(reason) from None
        except Exception as exc:  # whatever the store raises: its server has ended
            self.lost = _first_line(exc)
            raise StoreLostError(self.lost) from exc
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


_CONNECT = timedelta(minutes=15)
"""The board counts the seconds of silence itself; the thread that connects may wait longer than that."""


def open_first(world: World, *, serves: bool) -> Any:
    """Return a connection to the store at the rendezvous of the ranks.

    Args:
        world: this rank's place.
        serves: whether the store is made here unless another program already serves it: rank 0's first connection.
    """
    if world.world_size == 1:
        return dist.HashStore()  # type: ignore[attr-defined]  # torch's stub lacks it
    by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = _client_or_server(world.master_addr, world.master_port, serves=serves and not by_agent)
    # torchrun restarts ranks with the same store, which still holds what the ranks before them wrote.
    return prefixed(f"doctor {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def open_second(address: str) -> Any:
    """Return a connection to the store that another rank serves at "host port"."""
    host, port = address.split()
    return _client_or_server(host, int(port), serves=False)


def serve_second(world: World) -> tuple[Any, str]:
    """Serve a store on a free port; return it and its address as "host port"."""
    store = _client_or_server("localhost", 0, serves=True)
    return store, f"{_own_address(world)} {store.port}"


def prefixed(prefix: str, store: Any) -> Any:
    """Return the store with a prefix to all of its keys."""
    return dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]


def _client_or_server(host: str, port: int, *, serves: bool) -> Any:
    return dist.TCPStore(host, port, is_master=serves, timeout=_CONNECT, wait_for_workers=False)  # type: ignore[attr-defined]


def _own_address(world: World) -> str:
    """Return the address of this host on the way to rank 0, by which the other hosts reach it too."""
    family, kind, _, _, address = socket.getaddrinfo(world.master_addr, world.master_port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # of a datagram: nothing is sent
        return str(probe.getsockname()[0])
