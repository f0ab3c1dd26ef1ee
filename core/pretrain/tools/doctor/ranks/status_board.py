"""Status of every rank, where the other ranks can read it, and the ranks that have become silent."""

from __future__ import annotations

import json
import os
import socket
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import astuple, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pretrain.tools.doctor.finding import Finding
from pretrain.tools.doctor.ranks.store_client import StoreClient, StoreLostError, open_first, serve

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pretrain.launch.world import World

_SECOND = "second store"
_BEAT = 0.5  # seconds between two signs of life of a rank that waits


@dataclass(frozen=True, slots=True)
class Mark:
    """The last that a rank has said; the count grows with every mark."""

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
        first = StoreClient(partial(open_first, world, serves=world.rank == 0))
        self._clients = [first]
        if world.world_size > 1:
            second = partial(_serve_second, world, first) if world.rank == 1 else partial(_find_second, world)
            self._clients.append(StoreClient(second))
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
        """Say what this rank does now; a rank that goes on doing it for `timeout` seconds is named with it."""
        self.words, self.spoken = text, time.monotonic()
        self._mark()

    def beat(self) -> None:
        """Say that this rank's main thread lives, while another thread works."""
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


def _serve_second(world: World, first: StoreClient) -> Any:
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
            remedy = "look at its node: was the command started there, did it fail, can it reach that address?"
        else:
            who = f"rank {rank} (host {mark.host}, process {mark.pid})"
            text = f"{who} did not answer {within}; its last: {mark.doing}"
            remedy = "look at that process there: `ps` shows a stopped one as T, `py-spy dump --pid` where one hangs"
        return Finding.wrong("ranks", text, remedy, (rank,))
