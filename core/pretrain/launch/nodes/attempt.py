"""One attempt of a run, in the store of all nodes: those that come and are alive, how it ends, and what follows.

The node that leads writes a small record for each of the others: what is read of the store grows as their number.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pretrain.launch.nodes.reports import Reports, absent_nodes, shared_node_rank, silent_node
from pretrain.launch.processes.failure import Failure
from pretrain.launch.restarts import Decision
from pretrain.launch.world import NodePart, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pretrain.launch.nodes.heartbeats import HeartbeatWatch
    from pretrain.launch.nodes.nodes import Nodes
    from pretrain.launch.nodes.store_client import StoreClient
    from pretrain.launch.world import World

_ARRIVED, _MEMBERS, _BEGUN, _DONE, _VERDICT = "arrived", "members", "begun", "done", "verdict"
"""Keys: how many nodes have come; its nodes, which only leaders read; what all of them read once it has begun; begin of
those of nodes whose ranks ended well; its failure, and what follows."""
_PERIOD = 0.2
_ABSENCE = 3.0  # seconds without a heartbeat after which a launcher does not take part
SILENCE = 60.0  # seconds without a heartbeat after which the node of a launcher is lost
_SHORT_SILENCE = 4.0
"""Seconds without a heartbeat after which a node is the cause where ranks have lost a rank and no node has said why:
they wait a little longer for such a word."""
_ANSWER_TIMEOUT = 3.0  # seconds that nodes get to end their ranks, and to say why, when they have read of a consequence
_NOTICE_AFTER = 5.0  # seconds after which node 0 says for whom it waits at a restart
_REPLACEMENT_AFTER = 5.0  # seconds after which a node that is left out takes part, as no other has come in its place
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
    address: str = ""  # at which the others reach it
    port: int = field(default_factory=free_port)  # for rank 0, if that is here


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What the nodes of an attempt are chosen by, besides who has come."""

    before: tuple[Arrival, ...] = ()  # nodes of the attempt before
    left_out: tuple[str, ...] = ()  # launchers of nodes that others are to replace


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
        self._launcher = ""  # of this node
        self._arrivals: dict[int, Arrival] = {}
        self._members: list[Arrival] = []
        self._begun: dict[str, Any] = {}
        self._crowded: float | None = None

    def arrive(self, place: int | None, ranks: int, launcher: str, address: str = "") -> int:
        """Announce this node; return the number of its arrival."""
        number, self._launcher = self._store.add(_ARRIVED, 1), launcher
        host = socket.gethostname()
        arrival = Arrival(number=number, place=place, ranks=ranks, host=host, launcher=launcher, address=address)
        self._store.set(f"arrival/{number}", json.dumps(asdict(arrival)))
        return number

    def gather(
        self, wanted: Nodes, fewest: int | None, require_no_end: Callable[[], object], known: Known
    ) -> list[Arrival]:
        """Wait on the node that leads for the nodes; return those that have come, by rank."""
        # `fewest` are enough at a restart, after a short wait. NodesAbsent: they have not come in time. RunEnded: two
        # have one --node-rank, or `require_no_end` raises it.
        began, is_said = time.monotonic(), False
        while True:
            came, waited = self._came(), time.monotonic() - began
            nodes = self._chosen(came, wanted.count, known, waited, fewest)
            self.there = len(nodes)
            is_awaited = self._misses_survivor(came, known) and waited <= _SHORT_TIMEOUT
            if self.there >= wanted.count and not is_awaited and not self._is_crowded(came, wanted):
                return nodes
            only_left_out = len(came) >= wanted.count > self.there  # those are there, and not waited for
            is_short = self.number > 0 and (only_left_out or waited > _SHORT_TIMEOUT)
            if is_short and not is_awaited and fewest is not None and self.there >= fewest:
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
        for number in range(1, self._store.add(_ARRIVED, 0) + 1):
            key = f"arrival/{number}"
            if number not in self._arrivals and self._store.check([key]):
                self._arrivals[number] = Arrival(**json.loads(self._store.get(key)))
        came = [self._arrivals[number] for number in sorted(self._arrivals)]
        silences = self._watch.silences([node.launcher for node in came])
        return [node for node, silence in zip(came, silences, strict=True) if silence < _ABSENCE]

    def _chosen(
        self, came: Sequence[Arrival], count: int, known: Known, waited: float, fewest: int | None
    ) -> list[Arrival]:
        """Return at most `count` nodes by rank: those of the attempt before keep their places, spares fill the gaps."""
        own = self._launcher  # this node leads, so it takes part
        able = [node for node in came if node.launcher == own or node.launcher not in known.left_out]
        enough = count if fewest is None else fewest
        if len(able) < enough and waited > _REPLACEMENT_AFTER:  # better with them than not at all
            able = list(came)
        before = {node.launcher for node in known.before}
        return in_order(
            sorted(able, key=lambda node: (node.launcher not in before, node.launcher != own, node.number)), count
        )

    def _misses_survivor(self, came: Sequence[Arrival], known: Known) -> bool:
        """Say whether a node of the attempt before, whose launcher is alive, has not come yet."""
        there = {node.launcher for node in came}
        away = [node.launcher for node in known.before if node.launcher not in there]
        return any(silence < _ABSENCE for silence in self._watch.silences(away))

    def _is_crowded(self, came: Sequence[Arrival], wanted: Nodes) -> bool:
        """Say whether there are too many nodes, one of which may be gone; RunEnded: two have one --node-rank."""
        same = [] if self.number else with_one_place(came)
        if len(came) <= wanted.count + wanted.spares and not same:
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

    def begin(self, members: Sequence[Arrival], plan: AttemptPlan | None, left_out: Sequence[str] = ()) -> NodePart:
        """Begin it with these nodes, on the one that leads; return the part of that."""
        self._members = list(members)
        before, world_size, parts = 0, sum(node.ranks for node in members), {}
        for place, node in enumerate(members):
            parts[node.launcher] = NodePart(node=place, ranks=node.ranks, before=before, world_size=world_size)
            before += node.ranks
        records = {_part_of(launcher): json.dumps(asdict(part)) for launcher, part in parts.items()}
        self._store.multi_set({**records, _MEMBERS: json.dumps([asdict(node) for node in members])})
        begun = {
            "nodes": len(members),
            "host": members[0].address,
            "port": members[0].port,
            "plan": plan and asdict(plan),
            "left_out": list(left_out),
        }
        self._store.set(_BEGUN, json.dumps(begun))
        return parts[self._launcher]

    def has_begun(self) -> bool:
        """Say whether the node that leads has chosen the nodes."""
        return self._store.check([_BEGUN])

    def own(self) -> Arrival:
        """Return the arrival of this node, which leads and has gathered the others."""
        return next(node for node in self._arrivals.values() if node.launcher == self._launcher)

    def waiting(self, members: Sequence[Arrival]) -> list[str]:
        """Return the hosts of nodes that have come and take no part, on the node that leads."""
        chosen = {node.launcher for node in members}
        return [node.host for node in self._arrivals.values() if node.launcher not in chosen]

    def size(self) -> int:
        """Return how many nodes an attempt has that has begun."""
        return int(self._common()["nodes"])

    def leaves_out(self, launcher: str) -> bool:
        """Say whether an attempt that has begun leaves out the node of this launcher, which has caused failures."""
        return launcher in self._common()["left_out"]

    def members(self) -> list[Arrival]:
        """Return the nodes of an attempt that has begun, all of them: for the node that leads, or is to lead."""
        if not self._members:
            self._members = [Arrival(**node) for node in json.loads(self._store.get(_MEMBERS))]
        return self._members

    def plan(self) -> AttemptPlan | None:
        """Return what was decided by the node that leads, in a run that it has prepared."""
        plan = self._common()["plan"]
        return AttemptPlan(**{**plan, "holder": tuple(plan["holder"])}) if plan else None

    def part(self, launcher: str) -> NodePart | None:
        """Return the part that the node of this launcher has in an attempt that has begun; None: none."""
        key = _part_of(launcher)
        return NodePart(**json.loads(self._store.get(key))) if self._store.check([key]) else None

    def worlds(self, part: NodePart, host: str) -> list[World]:
        """Return the places of the ranks of a node; `host` has rank 0, if that has told no address."""
        begun = self._common()
        return part.worlds(begun["host"] or host, begun["port"])

    def spares(self, left_out: Sequence[str]) -> int:
        """Return how many nodes wait that may take the place of another, on the node that leads."""
        taken = {*left_out, *(node.launcher for node in self.members())}
        return sum(node.launcher not in taken for node in self._came())

    def lost_node(self, seconds: float) -> Failure | None:
        """Return the loss of a node whose launcher has sent no heartbeat for so long."""
        self._came()  # a spare's silence counts from when it is seen here
        others = self._others()
        silences = self._watch.silences([node.launcher for node in others.values()])
        for (place, node), silence in zip(others.items(), silences, strict=True):
            if silence > seconds:
                return silent_node(place, node.host, silence)
        return None

    def _others(self) -> dict[int, Arrival]:
        """Return the other nodes by their places."""
        members = self.members() if self.has_begun() else []
        return {place: node for place, node in enumerate(members) if node.launcher != self._launcher}

    def decide(
        self, failure: Failure | None, judge: Callable[[Failure], Decision], ended: Callable[[], Failure | None]
    ) -> tuple[Failure | None, Decision]:
        """Decide on node 0 what follows; return the failure of the run, and the verdict."""
        if failure is None or failure.stopped:
            failure = self._failure_of_others(ended) or self.reports.stopped()
        failure = failure and self._explained(failure)
        verdict = judge(failure) if failure else Decision()
        self._store.compare_set(_VERDICT, "", json.dumps([failure and asdict(failure), asdict(verdict)]))
        return self.decided()  # by another node, if that has led meanwhile

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
        left = self._others()
        while left and not self._store.check([f"{_DONE}/{place}" for place in left]):
            if failure := ended() or self.reports.failure():
                return failure
            silences = self._watch.silences([node.launcher for node in left.values()])
            for (place, node), silence in zip(list(left.items()), silences, strict=True):
                if silence > SILENCE:
                    del left[place]
                    if not self._store.check([f"{_DONE}/{place}"]):
                        sys.stderr.write(f"warning: {silent_node(place, node.host, silence)}\n")
            time.sleep(_PERIOD if left else 0)
        return None

    def _common(self) -> dict[str, Any]:
        if not self._begun:
            self._begun = json.loads(self._store.get(_BEGUN))
        return self._begun


def _part_of(launcher: str) -> str:
    return f"part of {launcher}"


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
    for arrival in arrivals:
        if arrival.place is None or not 0 <= arrival.place < count or arrival.place in placed:
            others.append(arrival)
        else:
            placed[arrival.place] = arrival
    vacant = (place for place in range(count) if place not in placed)
    placed.update(zip(vacant, others, strict=False))
    return [placed[place] for place in sorted(placed)]
