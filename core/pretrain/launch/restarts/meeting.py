"""Meeting of the nodes before one attempt, as node 0 sees it: who has come, and when they are enough."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING

from pretrain.launch.nodes.arrivals import Arrival, in_order, with_one_place
from pretrain.launch.restarts import node_failures
from pretrain.launch.restarts.terms import NodesAbsent, RunEnded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pretrain.launch.nodes.bounded_store import BoundedStore
    from pretrain.launch.nodes.nodes import Nodes
    from pretrain.launch.restarts.signs import Watch

_PERIOD = 0.2
_NOTICE_AFTER = 5.0
"""Seconds after which node 0 says for whom it waits at a restart."""
ARRIVAL_TIMEOUT = timedelta(minutes=15)
"""How long node 0 waits for the others, and they try to reach it again."""
_SHORT_TIMEOUT = 30.0
"""Seconds that nodes get to come back where the run may go on without them: the launchers of the others are there
already, and one that a batch system starts again needs some seconds to import torch."""
_SILENCE = 3.0
"""Seconds without a sign, of which a launcher gives one each second, after which it does not take part."""
_ARRIVED = "arrived"
"""Key of an attempt: how many nodes have come."""


def arrive(store: BoundedStore, *, place: int | None, ranks: int, host: str, launcher: str) -> int:
    """Say that a node has come; return its number among those that have.

    Args:
        store: of the attempt.
        place: see `Arrival`, as are the others.
        ranks: that it starts.
        host: its name.
        launcher: its identity.
    """
    number = store.add(_ARRIVED, 1)
    arrival = Arrival(number=number, place=place, ranks=ranks, host=host, launcher=launcher)
    store.set(f"arrival/{number}", json.dumps(asdict(arrival)))
    return number


class Meeting:
    """Wait of node 0 for the nodes of one attempt."""

    def __init__(
        self, store: BoundedStore, attempt: int, nodes: Nodes, watch: Watch, require_no_end: Callable[[], object]
    ) -> None:
        """Open it.

        Args:
            store: of the attempt.
            attempt: its number; a restart is one above 0.
            nodes: of the run.
            watch: of the launchers.
            require_no_end: raises RunEnded if the run is over.
        """
        self._store = store
        self._attempt = attempt
        self._nodes = nodes
        self._watch = watch
        self._require_no_end = require_no_end
        self._began = time.monotonic()
        self._crowded: float | None = None
        self._said = False

    def wait(self, fewest: int | None) -> list[Arrival]:
        """Return the nodes that have come, in the order of their ranks.

        Args:
            fewest: nodes that are enough at a restart, after a short wait; None: all.

        Raises:
            NodesAbsent: they have not come in time.
            RunEnded: a node was asked to end, or two have one place.
            DistError: the store is lost or silent.
        """
        while True:
            there = self._there()
            nodes, waited = in_order(there, self._nodes.count), time.monotonic() - self._began
            if len(nodes) >= self._nodes.count and not self._is_crowded(there):
                return nodes
            if self._attempt and fewest is not None and waited > _SHORT_TIMEOUT and len(nodes) >= fewest:
                return nodes
            if waited > ARRIVAL_TIMEOUT.total_seconds():
                waited_for = self._nodes.rendezvous, len(nodes), self._nodes.count, ARRIVAL_TIMEOUT
                raise NodesAbsent(node_failures.absence(*waited_for, at_restart=self._attempt > 0), len(nodes))
            if self._attempt and waited > _NOTICE_AFTER and not self._said:
                self._said = True
                sys.stderr.write(self._notice(len(nodes), fewest))
            self._require_no_end()
            time.sleep(_PERIOD)

    def _there(self) -> list[Arrival]:
        """Return the nodes that have come, and whose launchers still give signs."""
        keys = [f"arrival/{number}" for number in range(1, self._store.add(_ARRIVED, 0) + 1)]
        came = [Arrival(**json.loads(self._store.get(key))) for key in keys if self._store.check([key])]
        return [node for node in came if self._watch.silence(node.launcher) < _SILENCE]

    def _is_crowded(self, there: Sequence[Arrival]) -> bool:
        """Say whether there are too many nodes, one of which may be gone.

        Raises:
            RunEnded: two that stay have the same --node-rank.
        """
        same = [] if self._attempt else with_one_place(there)
        if len(there) <= self._nodes.count and not same:
            return False
        self._crowded = self._crowded or time.monotonic()
        if time.monotonic() - self._crowded < 1.5 * _SILENCE:
            return True
        if same:
            raise RunEnded(node_failures.one_node_rank(self._nodes.rendezvous, same))
        return False

    def _notice(self, there: int, fewest: int | None) -> str:
        seconds = ARRIVAL_TIMEOUT.total_seconds() if fewest is None else _SHORT_TIMEOUT
        after = "waits no longer" if fewest is None else f"goes on with {fewest} or more"
        return (
            f"restart: {there} of {self._nodes.count} nodes are there; the run {after} after {seconds:g} s. "
            "The same command on a node that is missing lets it come back.\n"
        )
