"""Attempts of a run on one of several nodes; all of them end and begin together, as node 0 decides."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.errors import LaunchError, PretrainError
from pretrain.launch.nodes.arrivals import largest_fitting
from pretrain.launch.nodes.connection import is_served_again
from pretrain.launch.processes.failure import CRASH, USER_ERROR, Failure
from pretrain.launch.processes.stop_signals import stop_signals_exit
from pretrain.launch.restarts.attempts import announce, show_end
from pretrain.launch.restarts.meeting import ARRIVAL_TIMEOUT
from pretrain.launch.restarts.reached import reached_by
from pretrain.launch.restarts.restarting_rendezvous import RestartingRendezvous
from pretrain.launch.restarts.restarts import Restarts, with_remark
from pretrain.launch.restarts.terms import NodesAbsent, RunEnded, Terms
from pretrain.launch.run_directory.preparation import Prepared
from pretrain.launch.run_directory.sharing import require_shared, this_process
from pretrain.recipe.layout import lay_out

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pretrain.launch.job import Job
    from pretrain.launch.nodes.arrivals import Arrival
    from pretrain.launch.rank_placement import Placement
    from pretrain.launch.restarts.reached import Reached
    from pretrain.launch.restarts.restart_policy import RestartPolicy
    from pretrain.launch.world import World

    RunRanks = Callable[[Job, Sequence[World], RestartingRendezvous], Failure | None]

_CUT_OFF = "node 0 cannot be reached from here; this node tries for 15 minutes, and takes part again when it can."


def run_node_attempts(placement: Placement, job: Job, policy: RestartPolicy, run_ranks: RunRanks) -> Failure | None:
    """Run the job on this node, again and again as node 0 decides; node 0 prepares the run and holds its directory.

    Returns:
        why the run failed, or has stopped before its end; None if it is complete.

    Raises:
        PretrainError: the run cannot be prepared, or its directory is not shared.
        SystemExit: a signal asked this node to end; the others end too.
    """
    loss: Failure | None = None
    with ExitStack() as lock, stop_signals_exit():
        while True:
            try:
                return _take_part(placement, job, policy, lock, run_ranks, loss)
            except RunEnded as ended:  # of the loss of node 0, or of the way to it
                loss = ended.failure
                notice = f"--rdzv {placement.nodes.rendezvous}: {_CUT_OFF}\n"
                if not is_served_again(placement.nodes.endpoint(), ARRIVAL_TIMEOUT, notice):
                    return loss


def _take_part(
    placement: Placement,
    job: Job,
    policy: RestartPolicy,
    lock: ExitStack,
    run_ranks: RunRanks,
    loss: Failure | None,
) -> Failure | None:
    """Join the run until it has ended; returns and raises as `run_node_attempts`.

    After a `loss` of node 0, the loss is returned where the run cannot be joined: it has ended meanwhile.

    Raises:
        RunEnded: node 0 cannot be reached any more.
    """
    try:
        rendezvous = RestartingRendezvous(placement.nodes, policy.limit, policy.fewest_nodes)
    except LaunchError:
        if loss is None:
            raise
        return loss
    try:
        node = _Node(rendezvous, placement, job, policy, lock)
        failure = node.run(run_ranks)
    except SystemExit as ended:
        rendezvous.end(rendezvous.asked_to_end(ended.code if isinstance(ended.code, int) else CRASH))
        raise
    except PretrainError as error:
        rendezvous.end(Failure(rank=0, when=time.time(), exit_code=USER_ERROR, text=str(error)))
        raise
    except RunEnded:
        raise
    except Exception as error:
        rendezvous.end(Failure.of(error, 0, with_traceback=True))
        raise
    else:
        rendezvous.end(failure)
        return failure
    finally:
        rendezvous.leave()


class _Node:
    """One node of a run with restarts."""

    def __init__(
        self, rendezvous: RestartingRendezvous, placement: Placement, job: Job, policy: RestartPolicy, lock: ExitStack
    ) -> None:
        self._rendezvous = rendezvous
        self._placement = placement
        self._job = job
        self._policy = policy
        self._lock = lock
        self._restarts = Restarts(policy, self._look)

    def run(self, run_ranks: RunRanks) -> Failure | None:
        """Return why the last attempt failed, or why the run ended while this node waited; None if it ended well.

        Raises:
            RunEnded: node 0 cannot be reached any more.
        """
        begin = self._begin if self._rendezvous.serves else self._join
        try:
            while True:
                try:
                    worlds = begin()  # it prepares the job, too
                    failure = run_ranks(self._job, worlds, self._rendezvous)
                except NodesAbsent as absent:
                    failure = absent.failure
                failure, verdict = self._rendezvous.settle(failure, self._restarts.judge)
                if verdict.wait is None:
                    break
                announce(failure, verdict)
                if self._rendezvous.serves:
                    self._rendezvous.back_off(verdict.wait)
        except RunEnded as ended:
            if ended.of_loss:
                raise
            return ended.failure
        if failure is None or failure.stopped:
            show_end(self._restarts)
        return failure and with_remark(failure, verdict)

    def _begin(self) -> list[World]:
        """Choose the nodes of an attempt, and prepare the run if it is the first one."""
        policy = self._policy
        members = self._rendezvous.meet(self._placement.nproc, self._choose, policy.fewest_nodes)
        if self._job.prepared:
            self._job = self._job.started_again()
        else:
            self._job = self._job.prepared_by_launcher(self._placement.recipe, self._lock)
        run_dir = str(Path(str(self._job.run_dir)).absolute())
        terms = Terms(run_dir=run_dir, resume=self._job.resume == "run", holder=this_process())
        return self._rendezvous.begin(members, terms)

    def _join(self) -> list[World]:
        worlds, terms = self._rendezvous.join(self._placement.nproc)
        require_shared(Path(terms.run_dir), terms.holder)
        self._job = self._job.as_prepared(Prepared(Path(terms.run_dir), terms.resume))
        return worlds

    def _choose(self, nodes: Sequence[Arrival], wanted: int) -> Sequence[Arrival]:
        recipe = self._placement.recipe
        if len(nodes) == wanted:
            lay_out(recipe, sum(node.ranks for node in nodes))
            return nodes
        fewest = self._policy.fewest_nodes or wanted
        return nodes[: largest_fitting([node.ranks for node in nodes], fewest, partial(lay_out, recipe))]

    def _look(self) -> Reached:
        return reached_by(self._placement.recipe, Path(str(self._job.run_dir)))
