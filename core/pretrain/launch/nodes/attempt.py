"""One attempt of a run, in the store of node 0: the nodes that come and are alive, how it ends, and what follows."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch.distributed import DistError

from pretrain.launch.nodes.reports import Reports, absent_nodes, shared_node_rank, silent_node
from pretrain.launch.processes.failure import Failure
from pretrain.launch.restarts import Decision
from pretrain.launch.world import free_port, node_worlds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pretrain.launch.nodes.nodes import Nodes
    from pretrain.launch.nodes.store_client import StoreClient
    from pretrain.launch.world import World

_ARRIVED, _MEMBERS, _DONE, _VERDICT = "arrived", "members", "done", "verdict"
"""Keys: how many nodes have come; its nodes; begin of those of nodes whose ranks ended well; its failure, and what
follows."""
_PERIOD = 0.2
_BEAT = 1.0  # seconds between two heartbeats of a launcher
_ABSENCE = 3.0  # seconds without a heartbeat after which a launcher does not take part
SILENCE = 60.0  # seconds without a heartbeat after which the node of a launcher is lost
_SHORT_SILENCE = 4.0
"""Seconds without a heartbeat after which a node is the cause where ranks have lost a rank and no node has said why:
they wait a little longer for such a word."""
_ANSWER_TIMEOUT = 3.0  # seconds that nodes get to end their ranks, and to say why, when they have read of a consequence
_NOTICE_AFTER = 5.0  # seconds after which node 0 says for whom it waits at a restart
ARRIVAL_TIMEOUT = timedelta(minutes=15)
"""How long node 0 waits for the others, and they try to reach it, at first and again."""
_SHORT_TIMEOUT = 30.0
"""Seconds that nodes get to come back where the run may go on without them: the launchers of the others are there
already, and one that a batch system starts again needs some seconds to import torch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrival:
    """A node that has come for an attempt; plain values."""

    number: int  # of arrivals at this attempt, from 1
    place: int | None  # node rank of the attempt before, or of --node-rank; None: any
    ranks: int
    host: str
    launcher: str = ""  # identity of its launcher, which gives heartbeats


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptPlan:
    """Values that node 0 decides for an attempt of a run that it has prepared."""

    run_dir: str  # as all nodes see it
    resume: bool  # its run is continued
    holder: tuple[str, int]  # host and process that hold it: node 0's launcher


class NodesAbsent(Exception):  # noqa: N818  it may be followed by a restart, as the end of an attempt is
    """An attempt could not begin: nodes are missing. `failure` is judged as one of ranks."""

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
    """Heartbeats of this launcher, one a second, whatever it is doing, until `stop` or the end of the store."""

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


def attempt_prefix(number: int) -> str:
    """Return the prefix of an attempt's keys."""
    return f"attempt {number}"


class Attempt:
    """An attempt as one node sees it; every method raises DistError where node 0 is lost or silent."""

    def __init__(self, store: StoreClient, number: int, watch: HeartbeatWatch) -> None:
        self.number = number  # from 0; a restart is one above
        self.there = 0  # nodes of those wanted that have come
        self._store = store.within(attempt_prefix(number))
        self.reports = Reports(self._store)
        self._watch = watch
        self._others: list[Arrival] = []
        self._crowded: float | None = None

    def arrive(self, place: int | None, ranks: int, launcher: str) -> int:
        """Announce this node; return the number of its arrival."""
        number = self._store.add(_ARRIVED, 1)
        arrival = Arrival(number=number, place=place, ranks=ranks, host=socket.gethostname(), launcher=launcher)
        self._store.set(f"arrival/{number}", json.dumps(asdict(arrival)))
        return number

    def gather(self, wanted: Nodes, fewest: int | None, require_no_end: Callable[[], object]) -> list[Arrival]:
        """Wait on node 0 for the nodes; return those that have come, by rank."""
        # `fewest` are enough at a restart, after a short wait. NodesAbsent: they have not come in time. RunEnded: two
        # have one --node-rank, or `require_no_end` raises it.
        began, is_said = time.monotonic(), False
        while True:
            came = self._came()
            nodes, waited = in_order(came, wanted.count), time.monotonic() - began
            self.there = len(nodes)
            if self.there >= wanted.count and not self._is_crowded(came, wanted):
                return nodes
            if self.number and fewest is not None and waited > _SHORT_TIMEOUT and self.there >= fewest:
                return nodes
            if waited > ARRIVAL_TIMEOUT.total_seconds():
                raise NodesAbsent(absent_nodes(wanted, self.there, ARRIVAL_TIMEOUT, at_restart=self.number > 0))
            if self.number and waited > _NOTICE_AFTER and not is_said:
                is_said = True
                sys.stderr.write(self._notice(wanted, fewest))
            require_no_end()
            time.sleep(_PERIOD)

    def _came(self) -> list[Arrival]:
        """Return the nodes that have come, and whose launchers still give heartbeats."""
        keys = [f"arrival/{number}" for number in range(1, self._store.add(_ARRIVED, 0) + 1)]
        came = [Arrival(**json.loads(self._store.get(key))) for key in keys if self._store.check([key])]
        return [node for node in came if self._watch.silence(node.launcher) < _ABSENCE]

    def _is_crowded(self, came: Sequence[Arrival], wanted: Nodes) -> bool:
        """Say whether there are too many nodes, one of which may be gone; RunEnded: two have one --node-rank."""
        same = [] if self.number else with_one_place(came)
        if len(came) <= wanted.count and not same:
            return False
        self._crowded = self._crowded or time.monotonic()
        if time.monotonic() - self._crowded < 1.5 * _ABSENCE:
            return True
        if same:
            raise RunEnded(shared_node_rank(wanted, same[0].place, [node.host for node in same]))
        return False

    def _notice(self, wanted: Nodes, fewest: int | None) -> str:
        seconds = ARRIVAL_TIMEOUT.total_seconds() if fewest is None else _SHORT_TIMEOUT
        after = "gives up" if fewest is None else f"continues with {fewest} or more"
        return (
            f"restart: {self.there} of {wanted.count} nodes are there; the run waits {seconds:g} s for the others, "
            f"then {after}. To bring a missing node back, give the same command there.\n"
        )

    def begin(self, members: Sequence[Arrival], plan: AttemptPlan | None) -> None:
        """Begin it with these nodes, on node 0."""
        record = {"nodes": [asdict(node) for node in members], "port": free_port(), "plan": plan and asdict(plan)}
        self._store.set(_MEMBERS, json.dumps(record))

    def has_begun(self) -> bool:
        """Say whether node 0 has chosen the nodes."""
        return self._store.check([_MEMBERS])

    def members(self) -> list[Arrival]:
        """Return the nodes of an attempt that has begun."""
        return [Arrival(**node) for node in self._record()["nodes"]]

    def plan(self) -> AttemptPlan | None:
        """Return what node 0 has decided, in a run that it has prepared."""
        plan = self._record()["plan"]
        return AttemptPlan(**{**plan, "holder": tuple(plan["holder"])}) if plan else None

    def worlds(self, place: int, host: str) -> list[World]:
        """Return the places of the ranks of the node at a place; `host` has rank 0."""
        members = self.members()
        self._others = members[1:]  # node 0 judges
        return node_worlds([node.ranks for node in members], place, host, self._record()["port"])

    def lost_node(self, seconds: float) -> Failure | None:
        """Return the loss of a node whose launcher has sent no heartbeat for so long."""
        for place, node in enumerate(self._others, 1):
            silence = self._watch.silence(node.launcher)
            if silence > seconds:
                return silent_node(place, node.host, silence)
        return None

    def decide(
        self, failure: Failure | None, judge: Callable[[Failure], Decision], ended: Callable[[], Failure | None]
    ) -> tuple[Failure | None, Decision]:
        """Decide on node 0 what follows; return the failure of the run, and the verdict."""
        if failure is None or failure.stopped:
            failure = self._failure_of_others(ended) or self.reports.stopped()
        else:
            failure = self._explained(failure)
        verdict = judge(failure) if failure else Decision()
        self._store.set(_VERDICT, json.dumps([failure and asdict(failure), asdict(verdict)]))
        return failure, verdict

    def set_done(self, place: int) -> None:
        """Say that the ranks of the node at a place have ended well, or have saved."""
        self._store.set(f"{_DONE}/{place}", "")

    def is_decided(self) -> bool:
        """Say whether node 0 has decided what follows."""
        return self._store.check([_VERDICT])

    def decided(self) -> tuple[Failure | None, Decision]:
        """Return the failure of the run, and what follows, as node 0 has decided."""
        cause, verdict = json.loads(self._store.get(_VERDICT))
        return Failure(**cause) if cause else None, Decision(**verdict)

    def _explained(self, failure: Failure) -> Failure:
        """Return the cause of a failure that is only a consequence, where it is known or soon becomes so."""
        deadline = time.monotonic() + _ANSWER_TIMEOUT
        while failure.lost_peer:
            failure = self.lost_node(_SHORT_SILENCE) or self.reports.failure() or failure
            if time.monotonic() > deadline:
                break
            time.sleep(_PERIOD)
        return failure

    def _failure_of_others(self, ended: Callable[[], Failure | None]) -> Failure | None:
        """Wait until the ranks of all nodes have ended; return the failure of some."""
        # A launcher that is lost by then costs nothing: the training is over, and a warning is enough.
        left = dict(enumerate(self._others, 1))
        while left:
            if failure := ended() or self.reports.failure():
                return failure
            for place, node in list(left.items()):
                silence = self._watch.silence(node.launcher)
                if self._store.check([f"{_DONE}/{place}"]):
                    del left[place]
                elif silence > SILENCE:
                    del left[place]
                    sys.stderr.write(f"warning: {silent_node(place, node.host, silence)}\n")
            time.sleep(_PERIOD if left else 0)
        return None

    def _record(self) -> Any:
        return json.loads(self._store.get(_MEMBERS))


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
