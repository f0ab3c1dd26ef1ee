"""Launchers of a run on many nodes, which meet, watch each other, restart and stop by the real rendezvous.

Each is the one of a node with `RANKS` ranks, which there are not: what their processes would tell it is made up.
"""

from __future__ import annotations

import time

from pretrain.exit_codes import ExitCode
from pretrain.launch.nodes import attempt, rendezvous, store_client
from pretrain.launch.nodes.nodes import Nodes
from pretrain.launch.nodes.rendezvous import Rendezvous
from pretrain.launch.processes.failure import Failure
from pretrain.launch.restarts import Decision, RestartPolicy

RANKS = 8  # of a node
PERIOD = 0.2  # seconds between two questions of a launcher whose ranks run, as in launch/processes/supervision.py
QUESTIONS = 10  # of each launcher, of which a run asks five a second


def be_patient() -> None:
    """Let nothing count as lost because all nodes share this machine's cores; no message more or less is sent."""
    for name in ("_PATIENCE", "_SHORT_PATIENCE", "_TRY"):
        setattr(store_client, name, 600.0)
    rendezvous.LOSS_AFTER = 600.0
    for name in ("_ABSENCE", "SILENCE", "_SHORT_SILENCE"):
        setattr(attempt, name, 600.0)


class Launcher:
    """The launcher of one node."""

    ACTS = ("rendezvous", "watch", "restart", "stop")

    def __init__(self, place: int, number: int, port: int) -> None:
        be_patient()
        self._place, nodes = place, Nodes(count=number, rendezvous=f"127.0.0.1:{port}", rank=place)
        self._rendezvous = Rendezvous(nodes, RestartPolicy(limit=3))

    def rendezvous(self) -> int:
        """Join the others; return the number of ranks."""
        if self._place:
            worlds, _ = self._rendezvous.join(RANKS)
        else:
            there = self._rendezvous.meet(RANKS, lambda nodes, wanted: nodes[:wanted])
            worlds = self._rendezvous.begin(there)
        return worlds[0].world_size

    def watch(self) -> int:
        """Ask what the others have reported, as while ranks run; return how often."""
        for _ in range(QUESTIONS):
            if (failure := self._rendezvous.poll()) is not None:
                raise RuntimeError(failure)
            self._rendezvous.requests.came()
            time.sleep(PERIOD)
        return QUESTIONS

    def restart(self) -> int:
        """Begin again after a failure on node 1, as node 0 decides; return the number of ranks."""
        failure = Failure(rank=RANKS, text="It was killed by SIGKILL.") if self._place == 1 else None
        while failure is None:
            failure = self._rendezvous.poll()
            time.sleep(PERIOD)
        failure, decision = self._rendezvous.settle(self._rendezvous.report(failure), lambda _: Decision(wait=0.0))
        if failure is None or decision.wait is None:
            raise RuntimeError(failure)
        return self.rendezvous()

    def stop(self) -> int:
        """Leave after the ranks of all nodes have saved by a signal at node 1."""
        stopped = Failure(exit_code=ExitCode.SAVED, text="stopped by SIGTERM", asked=self._place == 1)
        failure, decision = self._rendezvous.settle(self._rendezvous.report(stopped), lambda _: Decision())
        if failure is None or not failure.stopped or decision.wait is not None:
            raise RuntimeError(failure)
        return failure.exit_code
