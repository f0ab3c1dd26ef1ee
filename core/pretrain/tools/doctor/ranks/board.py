"""The board: what every rank is doing and has found, written where the other ranks can read it."""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import astuple, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pretrain.tools.doctor.ranks.line import Line, LineLostError
from pretrain.tools.doctor.ranks.stores import open_first, open_second, serve_second

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pretrain.launch.world import World

_SECOND = "second store"
_BEAT = 0.5
"""Seconds between two signs of life of a rank that waits."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The last that a rank has said.

    Attributes:
        count: grows with every mark.
        doing: in words.
        node: its number.
        host: its name.
        pid: of its process.
    """

    count: int
    doing: str
    node: int
    host: str
    pid: int


class Board:
    """The board as one rank sees it; every write is for its own rank.

    It is kept in two stores: one at the ranks' rendezvous, usually served by rank 0, and one served by rank 1. So
    what the ranks wrote can still be read when rank 0 is stopped or has died.
    """

    def __init__(self, world: World, timeout: float = 30.0) -> None:
        """Begin to connect, in the background.

        Args:
            world: this rank's place.
            timeout: seconds after which a rank that says nothing is silent.
        """
        self.world, self.timeout = world, timeout
        self.spoken = time.monotonic()
        self._count, self._doing, self._beaten = 0, "", 0.0
        first = Line(partial(open_first, world, serves=world.rank == 0))
        self._lines = [first]
        if world.world_size > 1:
            second = partial(_serve_second, world, first) if world.rank == 1 else partial(_find_second, world)
            self._lines.append(Line(second))
        self.doing("starting")

    @property
    def words(self) -> str:
        """The work of this rank now, in words."""
        return self._doing

    @property
    def reached(self) -> bool:
        """True once a store has been reached."""
        return any(line.connected for line in self._lines)

    @property
    def first_reached(self) -> bool:
        """True once the store of the rendezvous has been reached."""
        return self._lines[0].connected

    @property
    def lost(self) -> str:
        """The reason that no store can be read; empty while one can, or may yet be reached."""
        return self._lines[0].lost if all(line.lost for line in self._lines) else ""

    def doing(self, text: str) -> None:
        """Say what this rank does now; a rank that goes on doing it for `timeout` seconds is named with it."""
        self._doing, self.spoken = text, time.monotonic()
        self._mark()

    def beat(self) -> None:
        """Say that this rank's main thread lives, while another thread works."""
        if time.monotonic() - self._beaten > _BEAT:
            self._mark()

    def write(self, key: str, value: Any) -> None:
        """Write a value that JSON knows, in both stores."""
        for line in self._lines:
            line.send(key, json.dumps(value))

    def read(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return the values of those keys that have been written, from the first store that answers; {} if none."""
        wanted = list(keys)
        for line in self._lines:
            try:
                found = line.ask(partial(_present, keys=wanted), min(5.0, self.timeout / 2))
            except LineLostError:
                continue
            return {key: json.loads(text) for key, text in found.items()}
        return {}

    def flush(self) -> None:
        """Wait until what was written is in every store that answers; their clients end with this process."""
        for line in self._lines:
            with suppress(LineLostError):
                line.ask(lambda _: None, min(5.0, self.timeout / 2))  # questions are asked in their order

    def marks(self, ranks: Iterable[int]) -> Mapping[int, Mark]:
        """Return the last mark of each of the ranks that has written one."""
        keys = {f"mark/{rank}": rank for rank in ranks}
        return {keys[key]: Mark(*values) for key, values in self.read(keys).items()}

    def _mark(self) -> None:
        self._count, self._beaten = self._count + 1, time.monotonic()
        mark = Mark(self._count, self._doing, self.world.node_rank, socket.gethostname(), os.getpid())
        self.write(f"mark/{self.world.rank}", astuple(mark))


def _serve_second(world: World, first: Line) -> Any:
    store, address = serve_second(world)
    first.send(_SECOND, address)
    return store


def _find_second(world: World) -> Any:
    """Wait for the second store by a connection of this line's own."""
    return open_second(open_first(world, serves=False).get(_SECOND).decode())


def _present(store: Any, keys: list[str]) -> dict[str, bytes]:
    return {key: store.get(key) for key in keys if store.check([key])}
