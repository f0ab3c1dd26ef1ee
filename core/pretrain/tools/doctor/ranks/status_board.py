"""Status of every rank, in stores whose clients time out, and the ranks that have become silent."""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
import time
from collections import defaultdict
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import astuple, dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from pretrain.tools.doctor.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

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


class BoardStore:
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
        """Call the question with the store, in the client's thread, and return its answer."""
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


_SECOND = "second store"
_BEAT = 0.5  # seconds between two signs of life of a rank that waits


@dataclass(frozen=True, slots=True)
class Mark:
    """Last sign of life of a rank; the count grows with every mark."""

    count: int
    doing: str
    node: int
    host: str
    pid: int


class StatusBoard:
    """The board as one rank sees it; every write is for its own rank."""

    # It is kept in two stores: one at the ranks' rendezvous, usually served by rank 0, and one served by rank 1. So
    # what the ranks wrote can still be read when rank 0 is stopped or has died.

    def __init__(self, world: World, timeout: float = 30.0) -> None:
        self.world, self.timeout = world, timeout
        self.spoken = time.monotonic()
        self.words = ""  # the work of this rank now
        self._count, self._beaten = 0, 0.0
        first = BoardStore(partial(open_first, world, serves=world.rank == 0))
        self._clients = [first]
        if world.world_size > 1:
            second = partial(_serve_second, world, first) if world.rank == 1 else partial(_find_second, world)
            self._clients.append(BoardStore(second))
        self.doing("starting")

    @property
    def reached(self) -> bool:
        """True once a store has been reached."""
        return any(client.connected for client in self._clients)

    @property
    def first_reached(self) -> bool:
        """True once the store of the rendezvous has been reached."""
        return self._clients[0].connected

    @property
    def lost(self) -> str:
        """The reason that no store can be read; empty while one can, or may yet be reached."""
        return self._clients[0].lost if all(client.lost for client in self._clients) else ""

    def doing(self, text: str) -> None:
        """Publish what this rank does now; it is reported with it if nothing new follows for `timeout` seconds."""
        self.words, self.spoken = text, time.monotonic()
        self._mark()

    def beat(self) -> None:
        """Publish that this rank's main thread is alive while another thread works."""
        if time.monotonic() - self._beaten > _BEAT:
            self._mark()

    def write(self, key: str, value: Any) -> None:
        """Write a value that JSON knows, in both stores."""
        for client in self._clients:
            client.send(key, json.dumps(value))

    def read(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return the values of those keys that have been written, from the first store that answers; {} if none."""
        wanted = list(keys)

        def read(store: Any) -> dict[str, Any]:
            return {key: json.loads(store.get(key)) for key in wanted if store.check([key])}

        for client in self._clients:
            try:
                return client.ask(read, min(5.0, self.timeout / 2))
            except StoreLostError:
                continue
        return {}

    def flush(self) -> None:
        """Wait until what was written is in every store that answers; their clients end with this process."""
        for client in self._clients:
            with suppress(StoreLostError):
                client.ask(lambda _: None, min(5.0, self.timeout / 2))  # questions are asked in their order

    def marks(self, ranks: Iterable[int]) -> Mapping[int, Mark]:
        """Return the last mark of each of the ranks that has written one."""
        keys = {f"mark/{rank}": rank for rank in ranks}
        return {keys[key]: Mark(*values) for key, values in self.read(keys).items()}

    def _mark(self) -> None:
        self._count, self._beaten = self._count + 1, time.monotonic()
        mark = Mark(self._count, self.words, self.world.node_rank, socket.gethostname(), os.getpid())
        self.write(f"mark/{self.world.rank}", astuple(mark))


def _serve_second(world: World, first: BoardStore) -> Any:
    store = serve("localhost", 0)
    # This host's address on the way to rank 0, by which the other hosts reach it too.
    family, kind, _, _, address = socket.getaddrinfo(world.master_addr, world.master_port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # of a datagram: nothing is sent
        first.send(_SECOND, f"{probe.getsockname()[0]} {store.port}")
    return store


def _find_second(world: World) -> Any:
    # By a connection of its own: it waits until rank 1 has written the address.
    host, port = open_first(world, serves=False).get(_SECOND).decode().split()
    return serve(host, int(port), serves=False)


_PERIOD = 0.5


class SilenceWatch:
    """Finds ranks whose marks no longer change."""

    def __init__(self, board: StatusBoard) -> None:
        self._board = board
        self._looked, begun = 0.0, time.monotonic()
        # The last mark of a rank, and when it was first seen: one that never writes is silent `timeout` s from now.
        self._seen: dict[int, tuple[Mark | None, float]] = defaultdict(lambda: (None, begun))

    def look(self, ranks: Iterable[int], *, at_once: bool = False) -> None:
        """Read the marks of the ranks, at most twice a second unless `at_once`."""
        now = time.monotonic()
        if not at_once and now - self._looked < _PERIOD:
            return
        self._looked = now
        wanted = list(ranks)
        marks = self._board.marks(wanted)
        for rank in wanted:
            if rank in marks and marks[rank] != self._seen[rank][0]:
                self._seen[rank] = marks[rank], now

    def renew(self, rank: int) -> None:
        """Count the silence of a rank from now."""
        self._seen[rank] = self._seen[rank][0], time.monotonic()

    def silent(self, ranks: Iterable[int]) -> list[int]:
        """Return those of the ranks whose marks have not changed for the board's `timeout`."""
        limit = time.monotonic() - self._board.timeout
        return [rank for rank in ranks if self._seen[rank][1] < limit]

    def unchanged_since(self, when: float, ranks: Iterable[int]) -> list[int]:
        """Return those of the ranks whose marks have not changed since a time of `time.monotonic`."""
        return [rank for rank in ranks if self._seen[rank][1] <= when]

    def describe(self, rank: int) -> Finding:
        """Return the finding about a silent rank: its host, process and what it did last."""
        world, mark = self._board.world, self._seen[rank][0]
        within = f"within {self._board.timeout:g} s"
        if mark is None:
            address = f"{world.master_addr}:{world.master_port}"
            text = f"rank {rank} of {world.world_size} did not connect to {address} {within}"
            remedy = "check its node: was the command started there, did it fail, can it reach that address?"
        else:
            who = f"rank {rank} (host {mark.host}, process {mark.pid})"
            text = f"{who} did not answer {within}; its last action: {mark.doing}"
            remedy = "check that process: `ps` shows T if it is stopped, `py-spy dump --pid` shows where it hangs"
        return Finding.wrong("ranks", text, remedy, (rank,))
