"""The node that leads a run: it opens attempts and judges failures.

It is node 0, which serves the store. Where the store is served elsewhere, it is the node that came first, and another
one after its loss: what that has to know is in the store.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from torch.distributed import DistError

from pretrain.launch.nodes.heartbeats import HeartbeatWatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.launch.nodes.store_client import StoreClient

END = "end"
"""Key of a run: why it ends, if it is over."""
_LEADER, _STATE, _RUNS = "leader", "state", "runs"
"""Keys: launcher of the node that leads a run; what the next one has to know; number of the present run of a store."""
_PERIOD = 1.0  # seconds between two looks at the leader
_SILENCE = 10.0  # seconds without a heartbeat of the leader after which another node leads
_ABANDONED = 30.0  # seconds without a heartbeat of a leader after which nobody is left of its run
_NOTICE_AFTER = 3.0


class LeaderChanged(Exception):  # noqa: N818  the node goes on, in another role
    """This node leads from now on, or does so no longer."""


class Leader:
    """The node that leads, as one node sees it; methods raise DistError where the store is lost."""

    def __init__(
        self, store: StoreClient, watch: HeartbeatWatch, launcher: str, *, serves: bool, external: bool
    ) -> None:
        self._store, self._watch, self._launcher, self._external = store, watch, launcher, external
        self.is_here = serves
        self._looked = time.monotonic()
        if external:
            self.is_here = store.compare_set(_LEADER, "", launcher).decode() == launcher

    def follow(self, may_lead: Callable[[], bool]) -> bool:
        """Take over from a leader that is silent if this node `may_lead`; return whether its role has changed."""
        if not self._external or time.monotonic() - self._looked < _PERIOD:
            return False
        self._looked = time.monotonic()
        leader, before = self._store.get(_LEADER).decode(), self.is_here
        silence = 0.0 if leader == self._launcher else self._watch.silence(leader)
        if silence > _SILENCE and may_lead():
            leader = self._store.compare_set(_LEADER, leader, self._launcher).decode()
        elif silence > _ABANDONED:
            msg = "the node that led the run is lost, and no node of its attempt has taken over"
            raise DistError(msg)
        self.is_here = leader == self._launcher
        return self.is_here != before

    def hand_to(self, launcher: str) -> None:
        """Let the node of another launcher lead, which does so when it looks next."""
        self.is_here = self._store.compare_set(_LEADER, self._launcher, launcher).decode() == self._launcher

    def keep(self, state: dict[str, Any]) -> None:
        """Keep what the next leader has to know."""
        if self._external:
            self._store.set(_STATE, json.dumps(state))

    def kept(self) -> dict[str, Any]:
        """Return what the leader before has kept; {} if it has kept nothing."""
        known: dict[str, Any] = json.loads(self._store.get(_STATE)) if self._store.check([_STATE]) else {}
        return known


def present_run(store: StoreClient, endpoint: str | None) -> StoreClient:
    """Return the part of a store that the present run has: a new one if the last is over, or has nobody left."""
    while True:
        number = store.add(_RUNS, 0)
        run = store.within(f"run {number}")
        if not run.check([END]) and not _is_abandoned(run, endpoint):
            return run
        store.compare_set(_RUNS, str(number), str(number + 1))  # the first of those that find it so


def _is_abandoned(run: StoreClient, endpoint: str | None) -> bool:
    """Wait for a sign of the leader; return whether there is none."""
    watch, began, is_said = HeartbeatWatch(run), time.monotonic(), False
    while run.check([_LEADER]):
        leader = run.get(_LEADER).decode()
        first = watch.beats([leader])
        time.sleep(_PERIOD / 2)
        if watch.beats([leader]) != first:
            return False
        waited = time.monotonic() - began
        if waited > _ABANDONED:
            return True
        if waited > _NOTICE_AFTER and not is_said:
            is_said = True
            sys.stderr.write(
                f"--rdzv {endpoint}: the node that led the last run there gives no sign; "
                f"after {_ABANDONED:g} s without one this is a new run.\n"
            )
    return False
