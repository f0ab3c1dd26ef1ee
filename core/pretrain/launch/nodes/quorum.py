"""Quorum of an attempt: which nodes have come, whose launchers are alive, and when they are enough."""

from __future__ import annotations

import json
import sys
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from torch.distributed import DistError

from pretrain.launch.nodes import reports

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pretrain.launch.nodes.nodes import Nodes
    from pretrain.launch.nodes.store_client import StoreClient
    from pretrain.launch.processes.failure import Failure

_PERIOD = 0.2
_BEAT = 1.0
_NOTICE_AFTER = 5.0  # seconds after which node 0 says for whom it waits at a restart
ARRIVAL_TIMEOUT = timedelta(minutes=15)
"""How long node 0 waits for the others, and they try to reach it, at first and again."""
_SHORT_TIMEOUT = 30.0
"""Seconds that nodes get to come back where the run may go on without them: the launchers of the others are there
already, and one that a batch system starts again needs some seconds to import torch."""
_SILENCE = 3.0
"""Seconds without a heartbeat, of which a launcher gives one each second, after which it does not take part."""
_ARRIVED = "arrived"  # key of an attempt: how many nodes have come


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrival:
    """A node that has come for an attempt; plain values."""

    number: int  # of arrivals at this attempt, from 1
    place: int | None  # node rank of the attempt before, or of --node-rank; None: any
    ranks: int
    host: str
    launcher: str = ""  # identity of its launcher, which gives heartbeats

    @classmethod
    def announce(cls, store: StoreClient, *, place: int | None, ranks: int, host: str, launcher: str) -> int:
        """Write that a node has come into the store of the attempt; return its number."""
        number = store.add(_ARRIVED, 1)
        arrival = cls(number=number, place=place, ranks=ranks, host=host, launcher=launcher)
        store.set(f"arrival/{number}", json.dumps(asdict(arrival)))
        return number


class NodesAbsent(Exception):  # noqa: N818  it may be followed by a restart, as the end of an attempt is
    """An attempt could not begin: nodes have not come. `failure` is judged as one of ranks."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


class RunEnded(Exception):  # noqa: N818  it is no error where the run was asked to end
    """The run ended while this node was waiting."""

    def __init__(self, failure: Failure | None, *, of_loss: bool = False) -> None:
        super().__init__(str(failure))
        self.failure = failure  # why it ended or stopped; None if it is complete
        self.of_loss = of_loss  # node 0 is gone, so that nothing is known of the run


class Heartbeat(threading.Thread):
    """Heartbeats of this launcher, one a second, whatever it is doing: ending ranks or a file system takes long."""

    def __init__(self, store: StoreClient, launcher: str) -> None:
        super().__init__(daemon=True, name="heartbeat")
        self._store = weakref.ref(store)
        self._key = _beats(launcher)
        self._end = threading.Event()
        self.start()

    def run(self) -> None:
        """Beat each second."""
        while (store := self._store()) is not None:
            with suppress(DistError):
                store.add(self._key, 1)
            del store
            if self._end.wait(_BEAT):
                return

    def stop(self) -> None:
        """Give no more heartbeats."""
        self._end.set()


class HeartbeatWatch:
    """Silence of launchers, as seen here."""

    def __init__(self, store: StoreClient) -> None:
        self._store = store
        self._seen: dict[str, tuple[int, float]] = {}

    def silence(self, launcher: str) -> float:
        """Return the seconds since a new heartbeat was seen; 0 at first."""
        now, latest = time.monotonic(), self._store.add(_beats(launcher), 0)
        if launcher not in self._seen or self._seen[launcher][0] != latest:
            self._seen[launcher] = latest, now
        return now - self._seen[launcher][1]


def _beats(launcher: str) -> str:
    return f"heartbeats/{launcher}"


class Quorum:
    """Wait of node 0 for the nodes of one attempt; `require_no_end` raises RunEnded if the run is over."""

    def __init__(
        self,
        store: StoreClient,
        attempt: int,
        nodes: Nodes,
        watch: HeartbeatWatch,
        require_no_end: Callable[[], object],
    ) -> None:
        self.there = 0  # nodes of those wanted that have come
        self._store = store
        self._attempt = attempt
        self._nodes = nodes
        self._watch = watch
        self._require_no_end = require_no_end
        self._began = time.monotonic()
        self._crowded: float | None = None
        self._said = False

    def wait(self, fewest: int | None) -> list[Arrival]:
        """Return the nodes that have come, by rank; `fewest` are enough at a restart, after a short wait."""
        while True:
            came = self._came()
            nodes, waited = in_order(came, self._nodes.count), time.monotonic() - self._began
            self.there = len(nodes)
            if self.there >= self._nodes.count and not self._is_crowded(came):
                return nodes
            if self._attempt and fewest is not None and waited > _SHORT_TIMEOUT and self.there >= fewest:
                return nodes
            if waited > ARRIVAL_TIMEOUT.total_seconds():
                counts = self._nodes.rendezvous, self.there, self._nodes.count, ARRIVAL_TIMEOUT
                raise NodesAbsent(reports.absent_nodes(*counts, at_restart=self._attempt > 0))
            if self._attempt and waited > _NOTICE_AFTER and not self._said:
                self._said = True
                sys.stderr.write(self._notice(fewest))
            self._require_no_end()
            time.sleep(_PERIOD)

    def _came(self) -> list[Arrival]:
        """Return the nodes that have come, and whose launchers still give heartbeats."""
        keys = [f"arrival/{number}" for number in range(1, self._store.add(_ARRIVED, 0) + 1)]
        came = [Arrival(**json.loads(self._store.get(key))) for key in keys if self._store.check([key])]
        return [node for node in came if self._watch.silence(node.launcher) < _SILENCE]

    def _is_crowded(self, came: Sequence[Arrival]) -> bool:
        """Say whether there are too many nodes, one of which may be gone; RunEnded: two have one --node-rank."""
        same = [] if self._attempt else with_one_place(came)
        if len(came) <= self._nodes.count and not same:
            return False
        self._crowded = self._crowded or time.monotonic()
        if time.monotonic() - self._crowded < 1.5 * _SILENCE:
            return True
        if same:
            hosts = [node.host for node in same]
            raise RunEnded(reports.shared_node_rank(self._nodes.rendezvous, same[0].place, hosts))
        return False

    def _notice(self, fewest: int | None) -> str:
        seconds = ARRIVAL_TIMEOUT.total_seconds() if fewest is None else _SHORT_TIMEOUT
        after = "waits no longer" if fewest is None else f"continues with {fewest} or more"
        return (
            f"restart: {self.there} of {self._nodes.count} nodes are there; the run {after} after {seconds:g} s. "
            "The same command on a node that is missing lets it come back.\n"
        )


def with_one_place(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Return those nodes, two or more, that want the place that the first of them wants; [] if no two want the same."""
    for arrival in arrivals:
        same = [other for other in arrivals if other.place is not None and other.place == arrival.place]
        if len(same) > 1:
            return same
    return []


def in_order(arrivals: Sequence[Arrival], count: int) -> list[Arrival]:
    """Return at most `count` nodes in the order of their ranks: on their places, then as they came."""
    placed: dict[int, Arrival] = {}
    others = []
    for arrival in sorted(arrivals, key=lambda each: each.number):
        if arrival.place is None or not 0 <= arrival.place < count or arrival.place in placed:
            others.append(arrival)
        else:
            placed[arrival.place] = arrival
    vacant = (place for place in range(count) if place not in placed)
    placed.update(zip(vacant, others, strict=False))
    return [placed[place] for place in sorted(placed)]
