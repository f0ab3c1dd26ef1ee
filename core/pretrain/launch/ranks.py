"""Ranks of one node, which this process starts and waits for, also as one node of several."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pretrain.launch.job import ForwardJob
from pretrain.launch.processes.children import Processes
from pretrain.launch.processes.failure import Failure
from pretrain.launch.processes.signals import REPORT_SIGNAL
from pretrain.launch.processes.supervision import supervise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.launch.job import AnyJob
    from pretrain.launch.nodes.rendezvous import Rendezvous
    from pretrain.launch.world import World


def run_ranks(job: AnyJob, worlds: Sequence[World]) -> Failure | None:
    """Run the job on every rank of a run on one node; returns and raises as `pretrain.launch.start.start`.

    A world of one rank is this process: it starts faster, and Ctrl-C and errors need no detour.
    """
    if worlds[0].world_size == 1:
        end = job.run(worlds[0])
        return dataclasses.replace(Failure.of_stop(end), asked=True) if end.code else None
    return run_children(job, worlds)


def run_children(job: AnyJob, worlds: Sequence[World], rendezvous: Rendezvous | None = None) -> Failure | None:
    """Run the job on every rank of this node, each a child process; returns and raises as `run_ranks`."""
    patience = job.patience if isinstance(job, ForwardJob) else None
    with Processes(job, worlds) if rendezvous is None else _RanksOfNode(job, worlds, rendezvous) as ranks:

        def poll() -> Failure | None:
            elsewhere = ranks.poll() if isinstance(ranks, _RanksOfNode) else None
            return elsewhere or (ranks.left_behind(patience) if patience is not None else None)

        failure = supervise(ranks, poll, failure_ends=patience is None)
    if failure is None or rendezvous is None:
        return failure
    return rendezvous.report_stop(failure) if failure.stopped else rendezvous.report(failure)


class _RanksOfNode(Processes):
    """Ranks of one of several nodes: a report that is asked for here is one of the ranks of all nodes."""

    def __init__(self, job: AnyJob, worlds: Sequence[World], rendezvous: Rendezvous) -> None:
        super().__init__(job, worlds)
        self._rendezvous = rendezvous

    def send(self, number: int) -> None:
        """Pass a signal on; a request for a report goes to all nodes."""
        if number == REPORT_SIGNAL:
            self._rendezvous.report_requests.ask()
        else:
            self._rendezvous.asked_to_stop = True
            super().send(number)

    def poll(self) -> Failure | None:
        """Pass on a report that was asked for on any node, and what ranks have told; return another node's failure."""
        if self._rendezvous.report_requests.came():
            super().send(REPORT_SIGNAL)
        self._rendezvous.tell(self.told())
        return self._rendezvous.poll()
