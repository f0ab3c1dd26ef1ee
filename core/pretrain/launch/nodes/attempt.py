"""One attempt of a run, in the store of node 0: its nodes, how it ended, and what follows."""

from __future__ import annotations

import json
import socket
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pretrain.launch.nodes.quorum import Arrival
from pretrain.launch.nodes.reports import Reports, silent_node
from pretrain.launch.processes.failure import Failure
from pretrain.launch.restarts import Decision
from pretrain.launch.world import free_port, node_worlds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pretrain.launch.nodes.quorum import HeartbeatWatch
    from pretrain.launch.nodes.store_client import StoreClient
    from pretrain.launch.world import World

_MEMBERS, _DONE, _VERDICT = "members", "done", "verdict"
"""Keys: its nodes; begin of those of nodes whose ranks ended well; its failure, and what follows."""
_PERIOD = 0.2
_SILENCE = 60.0  # seconds without a heartbeat, of which a launcher gives one each second, after which its node is lost
_SHORT_SILENCE = 4.0
"""Seconds without a heartbeat after which a node is the cause where ranks have lost a rank and no node has said why:
they wait a little longer for such a word."""
_ANSWER_TIMEOUT = 3.0  # seconds that nodes get to end their ranks, and to say why, when they have read of a consequence


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptPlan:
    """Values that node 0 decides for an attempt of a run that it has prepared."""

    run_dir: str  # as all nodes see it
    resume: bool  # its run is continued
    holder: tuple[str, int]  # host and process that hold it: node 0's launcher


def attempt_prefix(number: int) -> str:
    """Return the prefix of an attempt's keys."""
    return f"attempt {number}"


class Attempt:
    """An attempt as one node sees it; every method raises DistError where node 0 is lost or silent."""

    def __init__(self, store: StoreClient, number: int, watch: HeartbeatWatch) -> None:
        self.number = number  # from 0; a restart is one above
        self.store = store.within(attempt_prefix(number))
        self.reports = Reports(self.store)
        self._watch = watch
        self._others: list[Arrival] = []

    def arrive(self, place: int | None, ranks: int, launcher: str) -> int:
        """Announce this node; return the number of its arrival."""
        host = socket.gethostname()
        return Arrival.announce(self.store, place=place, ranks=ranks, host=host, launcher=launcher)

    def begin(self, members: Sequence[Arrival], plan: AttemptPlan | None) -> None:
        """Let it begin with these nodes; node 0 calls it."""
        record = {"nodes": [asdict(node) for node in members], "port": free_port(), "plan": plan and asdict(plan)}
        self.store.set(_MEMBERS, json.dumps(record))

    def has_begun(self) -> bool:
        """Say whether node 0 has chosen the nodes."""
        return self.store.check([_MEMBERS])

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

    def lost_node(self) -> Failure | None:
        """Return the loss of a node whose launcher has given no heartbeat for long."""
        return self._silent(_SILENCE)

    def _silent(self, seconds: float) -> Failure | None:
        for place, node in enumerate(self._others, 1):
            silence = self._watch.silence(node.launcher)
            if silence > seconds:
                return silent_node(place, node.host, silence)
        return None

    def decide(
        self, failure: Failure | None, judge: Callable[[Failure], Decision], ended: Callable[[], Failure | None]
    ) -> tuple[Failure | None, Decision]:
        """Decide on node 0 what follows; return the failure of the run, and the verdict.

        `failure` is None if the ranks of node 0 came to the end; `ended` says why the run is over, or None.
        """
        if failure is None or failure.stopped:
            failure = self._failure_of_others(ended) or self.reports.stopped()
        else:
            failure = self._explained(failure)
        verdict = judge(failure) if failure else Decision()
        self.store.set(_VERDICT, json.dumps([failure and asdict(failure), asdict(verdict)]))
        return failure, verdict

    def set_done(self, place: int) -> None:
        """Say that the ranks of the node at a place have ended well, or have saved."""
        self.store.set(f"{_DONE}/{place}", "")

    def is_decided(self) -> bool:
        """Say whether node 0 has decided what follows."""
        return self.store.check([_VERDICT])

    def decided(self) -> tuple[Failure | None, Decision]:
        """Return the failure of the run, and what follows, as node 0 has decided."""
        cause, verdict = json.loads(self.store.get(_VERDICT))
        return Failure(**cause) if cause else None, Decision(**verdict)

    def _explained(self, failure: Failure) -> Failure:
        deadline = time.monotonic() + _ANSWER_TIMEOUT
        while failure.lost_peer:
            failure = self._silent(_SHORT_SILENCE) or self.reports.failure() or failure
            if time.monotonic() > deadline:
                break
            time.sleep(_PERIOD)
        return failure

    def _failure_of_others(self, ended: Callable[[], Failure | None]) -> Failure | None:
        """Wait until the ranks of all nodes have ended; return the failure of some.

        A launcher that is lost by then costs nothing: the training is over, and a warning is enough.
        """
        left = dict(enumerate(self._others, 1))
        while left:
            if failure := ended() or self.reports.failure():
                return failure
            for place, node in list(left.items()):
                silence = self._watch.silence(node.launcher)
                if self.store.check([f"{_DONE}/{place}"]):
                    del left[place]
                elif silence > _SILENCE:
                    del left[place]
                    sys.stderr.write(f"warning: {silent_node(place, node.host, silence)}\n")
            time.sleep(_PERIOD if left else 0)
        return None

    def _record(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(self.store.get(_MEMBERS))
        return record
