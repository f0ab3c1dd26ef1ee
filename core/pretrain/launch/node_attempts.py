"""A run on one of several nodes: its attempts end and begin together on all of them, as the one that leads decides."""

from __future__ import annotations

import dataclasses
import signal
import socket
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.errors import LaunchError, PretrainError
from pretrain.exit_codes import ExitCode
from pretrain.launch.job import Job, PreparedRun, hold_again
from pretrain.launch.nodes.attempt import ARRIVAL_TIMEOUT, AttemptPlan, NodesAbsent, RunEnded
from pretrain.launch.nodes.leader import LeaderChanged
from pretrain.launch.nodes.nodes import largest_fitting
from pretrain.launch.nodes.rendezvous import Rendezvous
from pretrain.launch.nodes.reports import signalled_node
from pretrain.launch.nodes.store_client import is_served_again
from pretrain.launch.processes.children import Processes, prepare_ranks
from pretrain.launch.processes.early_signals import REPORT_SIGNAL, REQUEST_SIGNALS
from pretrain.launch.processes.failure import CRASH, USER_ERROR, Failure
from pretrain.launch.processes.rank_starter import RankStarter
from pretrain.launch.processes.supervision import exit_with_signal, stop_signals_exit
from pretrain.launch.restarts import NO_RESTARTS, Restarts, RunProgress, announce, with_remark
from pretrain.launch.run_lock import require_shared, this_process
from pretrain.recipe.layout import lay_out

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pretrain.launch.job import AnyJob
    from pretrain.launch.nodes.attempt import Arrival
    from pretrain.launch.nodes.nodes import Nodes
    from pretrain.launch.placement import Placement
    from pretrain.launch.restarts import Decision, RestartPolicy
    from pretrain.launch.world import World


def run_node(placement: Placement, job: AnyJob, policy: RestartPolicy) -> Failure | None:
    """Run the job on this node, again as node 0 decides; return why the run failed or stopped."""
    # With restarts node 0 prepares the run and holds its directory; without, rank 0 does.
    loss: Failure | None = None
    with ExitStack() as lock, stop_signals_exit(), RankStarter(forks=placement.forks) as starter:
        while True:
            try:
                return _take_part(placement, job, policy, lock, starter, loss)
            except RunEnded as ended:  # of the loss of the store, or of the way to it
                loss = ended.failure
                lock.close()  # another node may lead by now, which takes the run's folders
                if not policy.limit or not _is_served_again(placement.nodes, job):
                    return loss


def _is_served_again(nodes: Nodes, job: AnyJob) -> bool:
    """Wait until the rendezvous can be reached again; return False if it cannot, or the run cannot go on there."""
    notice = (
        f"--rdzv {nodes.rendezvous}: {'it' if nodes.external else 'node 0'} cannot be reached from here; "
        "this node tries for 15 minutes and joins again when it can.\n"
    )
    return is_served_again(nodes.endpoint(), ARRIVAL_TIMEOUT, notice, elsewhere=nodes.external and _continues(job))


def _continues(job: AnyJob) -> bool:
    """Say whether the job, given again after the loss of all that is known of its run, goes on where that was."""
    return isinstance(job, Job) and job.resume != "no"


def _take_part(
    placement: Placement,
    job: AnyJob,
    policy: RestartPolicy,
    lock: ExitStack,
    starter: RankStarter,
    loss: Failure | None,
) -> Failure | None:
    """Join the run until it has ended; after a `loss` of node 0 return that where the run has ended meanwhile."""
    try:
        rendezvous = Rendezvous(placement.nodes, policy, trains=isinstance(job, Job))
    except LaunchError:
        if loss is None:
            raise
        return loss
    try:
        if loss is not None and placement.nodes.external and rendezvous.leads and not _continues(job):
            failure: Failure | None = loss  # nothing is known there of the run, which would begin once more
        else:
            failure = _Node(rendezvous, placement, job, policy, lock, starter).run()
    except SystemExit as ended:
        rendezvous.end(signalled_node(rendezvous.place, ended.code if isinstance(ended.code, int) else CRASH))
        raise
    except PretrainError as error:
        rendezvous.end(Failure(exit_code=USER_ERROR, text=str(error)))
        raise
    except RunEnded:
        raise
    except Exception as error:
        rendezvous.end(Failure.of(error, 0, with_traceback=True))
        raise
    else:
        if policy.limit or rendezvous.leads:  # without restarts the reports of the others say it
            rendezvous.end(failure)
        return failure
    finally:
        rendezvous.leave()


def run_node_of_hostfile(nodes: Nodes, make_placement: Callable[[], Placement], job: Job) -> Failure | None:
    """Run the job on one node of a hostfile, once; return or raise only what the launcher of all nodes has not read."""
    rendezvous = Rendezvous(nodes)  # until it has joined a signal ends this process at once
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, exit_with_signal)
    code: int = CRASH
    try:
        failure = _run_node_of_hostfile(rendezvous, make_placement, job)
        if rendezvous.leads:
            rendezvous.end(failure)
        code = failure.exit_code if failure else ExitCode.COMPLETE
        if failure is None or failure.stopped:  # the launcher reads it
            return None
        return None if rendezvous.launcher_has_read() else failure
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else CRASH
        if not rendezvous.launcher_has_read():
            raise
        return None
    finally:
        rendezvous.leave(code)


def _run_node_of_hostfile(rendezvous: Rendezvous, make_placement: Callable[[], Placement], job: Job) -> Failure | None:
    """Return the failure of this node; whatever ends it is reported, so that no other node waits for it."""
    try:
        rendezvous.wait_for_launcher()
        placement = make_placement()
        with RankStarter(forks=placement.forks) as starter:
            return _Node(rendezvous, placement, job, NO_RESTARTS, ExitStack(), starter).run()
    except RunEnded as ended:
        return ended.failure
    except PretrainError as error:
        host, failure = socket.gethostname(), Failure.of(error, 0, with_traceback=False)
        text = f"{host}: {error}"
        node = dataclasses.replace(failure, text=text, of_launcher=True, place=rendezvous.place, host=host)
        return _reported_to_all(rendezvous, node)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else CRASH
        _reported_to_all(rendezvous, dataclasses.replace(Failure.from_exit_code(0, code), asked=True))
        raise
    except Exception as error:  # noqa: BLE001  a plugin that cannot be imported, a system without memory for a process
        return _reported_to_all(rendezvous, Failure.of(error, 0, with_traceback=True))


def _reported_to_all(rendezvous: Rendezvous, failure: Failure) -> Failure:
    """Return the failure of the run, which ends it also on nodes that still wait for the others."""
    reported = rendezvous.report(failure)
    rendezvous.end(reported)
    return reported


def _run_ranks(job: AnyJob, worlds: Sequence[World], rendezvous: Rendezvous, starter: RankStarter) -> Failure | None:
    failure = _RanksOfNode(job, worlds, rendezvous, starter).run()
    return failure and rendezvous.report(failure)


class _RanksOfNode(Processes):
    """Ranks of one of several nodes: a report or a profile that is asked for here is one of the ranks of all nodes."""

    def __init__(self, job: AnyJob, worlds: Sequence[World], rendezvous: Rendezvous, starter: RankStarter) -> None:
        super().__init__(job, worlds, starter)
        self._rendezvous = rendezvous

    def send(self, number: int) -> None:
        """Pass a signal on; a request goes to all nodes."""
        if number in REQUEST_SIGNALS:
            self._rendezvous.requests.ask(number)
        else:
            self._rendezvous.asked_to_stop = True
            super().send(number)

    def poll(self) -> Failure | None:
        """Pass on what was asked for on any node, and what ranks have told; return another node's failure."""
        for number in self._rendezvous.requests.came():
            # Ranks agree on a profile by themselves: asked twice, at two moments, they would take two.
            if number == REPORT_SIGNAL or self._worlds[0].rank == 0:
                super().send(number)
        self._rendezvous.tell(self.told())
        return self._rendezvous.poll()


class _Node:
    def __init__(
        self,
        rendezvous: Rendezvous,
        placement: Placement,
        job: AnyJob,
        policy: RestartPolicy,
        lock: ExitStack,
        starter: RankStarter,
    ) -> None:
        self._rendezvous = rendezvous
        self._placement = placement
        self._job = job
        self._policy = policy
        self._lock = lock
        self._starter = starter
        self._restarts = Restarts(policy, self._progress)
        self._leads = False  # it has read what the node that led before knew

    def run(self) -> Failure | None:
        """Return why the last attempt failed, or why the run ended while this node waited; None if it ended well."""
        if self._placement.needs_own_machine:
            self._rendezvous.require_own_machine()
        try:
            while True:
                try:
                    worlds = self._placed()  # with the job prepared
                    failure = _run_ranks(self._job, worlds, self._rendezvous, self._starter)
                except NodesAbsent as absent:
                    failure = absent.failure
                if not self._policy.limit:
                    return failure
                failure, verdict = self._rendezvous.settle(failure, self._judge)
                if verdict.wait is None:
                    break
                announce(failure, verdict)
                self._wait(verdict.wait)
        except RunEnded as ended:
            if ended.of_loss:
                raise
            return ended.failure
        if failure is None or failure.stopped:
            self._restarts.show_end()
        return failure and with_remark(failure, verdict)

    def _wait(self, seconds: float) -> None:
        """Keep what the next node that leads has to know, and wait before the restart, on the one that leads."""
        if self._rendezvous.leads:  # the verdict is out: who leads next judges a failure only if nobody has
            self._keep()
        if self._rendezvous.leads:  # it is not left out
            with suppress(LeaderChanged):
                self._rendezvous.back_off(seconds)

    def _placed(self) -> list[World]:
        """Begin the next attempt, or join it, with the job prepared; return the places of the ranks here."""
        while True:
            try:
                return self._begin() if self._rendezvous.leads else self._join()
            except LeaderChanged:
                continue

    def _begin(self) -> list[World]:
        """Choose the nodes of an attempt, and prepare a run with restarts if it is the first one."""
        self._lead()
        members = self._rendezvous.meet(self._placement.nproc, self._choose)
        if not self._policy.limit or not isinstance(self._job, Job):
            return self._rendezvous.begin(members)
        if self._job.prepared:
            self._job = self._job.started_again()
        else:
            self._job = self._job.prepared_by_launcher(self._placement.recipe, self._lock)
            self._keep()
        run_dir = str(Path(str(self._job.run_dir)).absolute())
        plan = AttemptPlan(run_dir=run_dir, resume=self._job.resume == "run", holder=this_process())
        return self._rendezvous.begin(members, plan)

    def _lead(self) -> None:
        """Learn what the node that led before knew, and hold the run's folders in its place."""
        if self._leads:
            return
        self._leads, known = True, self._rendezvous.kept()
        if known and isinstance(self._job, Job):
            self._restarts.restore(known["restarts"])
            self._job = self._job.as_prepared(PreparedRun(Path(known["run_dir"]), resume=True))
            hold_again(self._placement.recipe, Path(known["run_dir"]), self._lock)

    def _stop_leading(self) -> None:
        """Leave the run's folders to the node that leads now."""
        if self._leads:
            self._leads = False
            self._lock.close()

    def _keep(self) -> None:
        if isinstance(self._job, Job) and self._job.prepared:
            run_dir = str(Path(str(self._job.run_dir)).absolute())
            self._rendezvous.keep({"restarts": self._restarts.state(), "run_dir": run_dir})

    def _judge(self, failure: Failure) -> Decision:
        """Decide what follows from a failure, as the node that leads."""
        self._lead()
        said, is_replaced = self._rendezvous.blame(failure)
        verdict = self._restarts.judge(failure, is_replaced=is_replaced)
        return dataclasses.replace(verdict, text="\n".join(filter(None, [said, verdict.text])))

    def _join(self) -> list[World]:
        self._stop_leading()
        nproc = self._placement.nproc  # what a spare has imported does not wait for it to be needed
        worlds, plan = self._rendezvous.join(nproc, lambda: prepare_ranks(self._job, nproc, self._starter))
        if plan is not None and isinstance(self._job, Job):
            require_shared(Path(plan.run_dir), plan.holder)
            self._job = self._job.as_prepared(PreparedRun(Path(plan.run_dir), plan.resume))
        return worlds

    def _choose(self, nodes: Sequence[Arrival], wanted: int) -> Sequence[Arrival]:
        recipe = self._placement.recipe
        if len(nodes) == wanted:
            lay_out(recipe, sum(node.ranks for node in nodes))
            return nodes
        fewest = self._policy.fewest_nodes or wanted
        return nodes[: largest_fitting([node.ranks for node in nodes], fewest, partial(lay_out, recipe))]

    def _progress(self) -> RunProgress:
        job = self._job
        return RunProgress.of_run(self._placement.recipe, Path(str(job.run_dir)) if isinstance(job, Job) else Path())
