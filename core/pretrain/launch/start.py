"""Start of the ranks of a placement, and their end."""

from __future__ import annotations

import dataclasses
import signal
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.errors import PretrainError
from pretrain.exit_codes import ExitCode
from pretrain.launch.forward_job import ForwardJob
from pretrain.launch.job import Job
from pretrain.launch.processes.children import Processes
from pretrain.launch.processes.failure import CRASH, Failure
from pretrain.launch.processes.report_signal import REPORT_SIGNAL
from pretrain.launch.processes.stop_signals import exit_with_signal
from pretrain.launch.processes.supervision import supervise
from pretrain.launch.restarts.restart_policy import NO_RESTARTS
from pretrain.launch.world import LOCALHOST, free_port, node_worlds
from pretrain.recipe.layout import lay_out

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pretrain.launch.jobs import AnyJob
    from pretrain.launch.nodes.nodes import Nodes
    from pretrain.launch.nodes.rendezvous import Rendezvous
    from pretrain.launch.rank_placement import Placement
    from pretrain.launch.restarts.restart_policy import RestartPolicy
    from pretrain.launch.world import World


def start(placement: Placement, job: AnyJob, policy: RestartPolicy = NO_RESTARTS) -> Failure | None:
    """Prepare the job, start this node's ranks, or those of all hosts of a hostfile, and wait for them.

    Args:
        placement: where they run.
        job: what they do.
        policy: of restarts after a failure, which trainings alone have.

    Returns:
        why a rank failed, or why the training has `stopped` before its end; None if it is complete.

    Raises:
        PretrainError: the run cannot be prepared; or raised by the training, in a world of one rank.
        SystemExit: a signal stopped the ranks before they could leave by themselves.
    """
    if placement.hosted is not None and isinstance(job, Job):
        from pretrain.launch.hosts import start_hosts  # noqa: PLC0415  most runs have no hostfile

        return start_hosts(placement.hosted, job, placement.recipe, policy)
    if placement.nodes.count > 1:
        return _start_with_others(placement, job, policy)
    with ExitStack() as lock:
        known = job.prepared_by_launcher(placement.recipe, lock)
        if policy.limit and isinstance(known, Job):
            return _run_with_restarts(placement, known, policy)
        return run_ranks(known, node_worlds([placement.nproc], 0, LOCALHOST, free_port()))


def _run_with_restarts(placement: Placement, job: Job, policy: RestartPolicy) -> Failure | None:
    """Run a prepared job, whose directory this process holds, in processes that can be replaced."""
    from pretrain.launch.restarts.attempts import run_attempts  # noqa: PLC0415  most runs have no restarts
    from pretrain.launch.restarts.restarts import Restarts  # noqa: PLC0415

    restarts = Restarts.of_run(policy, placement.recipe, Path(str(job.run_dir)))

    def attempt() -> Failure | None:
        worlds = node_worlds([placement.nproc], 0, LOCALHOST, free_port())
        return run_children(job.started_again() if restarts.count else job, worlds)

    return run_attempts(attempt, restarts)


def run_ranks(job: AnyJob, worlds: Sequence[World], rendezvous: Rendezvous | None = None) -> Failure | None:
    """Run the job on every rank of this node; returns and raises as `start`.

    A world of one rank is this process: it starts faster, and Ctrl-C and errors need no detour.
    """
    if worlds[0].world_size == 1 and rendezvous is None:
        end = job.run(worlds[0])
        return dataclasses.replace(Failure.of_stop(end), asked=True) if end.code else None
    return run_children(job, worlds, rendezvous)


def run_children(job: AnyJob, worlds: Sequence[World], rendezvous: Rendezvous | None = None) -> Failure | None:
    """Run the job on every rank of this node, each a child process; returns and raises as `start`."""
    patience = job.patience if isinstance(job, ForwardJob) else None
    with Processes(job, worlds) as processes:
        ranks = processes if rendezvous is None else _RanksOfNode(processes, rendezvous)

        def poll() -> Failure | None:
            elsewhere = ranks.poll() if isinstance(ranks, _RanksOfNode) else None
            return elsewhere or (processes.left_behind(patience) if patience is not None else None)

        failure = supervise(ranks, poll, failure_ends=patience is None)
    if failure is None or rendezvous is None:
        return failure
    return rendezvous.report_stop(failure) if failure.stopped else rendezvous.report(failure)


@dataclass(frozen=True, slots=True)
class _RanksOfNode:
    """Ranks of one of several nodes: a report that is asked for here is one of the ranks of all nodes."""

    processes: Processes
    rendezvous: Rendezvous

    def running(self) -> bool:
        return self.processes.running()

    def failures(self) -> list[Failure]:
        return self.processes.failures()

    def told(self) -> list[Failure]:
        return self.processes.told()

    def stop(self) -> Failure | None:
        return self.processes.stop()

    def send(self, number: int) -> None:
        if number == REPORT_SIGNAL:
            self.rendezvous.ask_for_report()
        else:
            self.rendezvous.asked_to_stop = True
            self.processes.send(number)

    def kill(self) -> None:
        self.processes.kill()

    def poll(self) -> Failure | None:
        """Pass on a report that was asked for on any node, and what ranks have told; return another node's failure."""
        if self.rendezvous.report_is_asked_for():
            self.processes.send(REPORT_SIGNAL)
        self.rendezvous.tell(self.processes.told())
        return self.rendezvous.poll()


def start_node_of_hostfile(nodes: Nodes, make_placement: Callable[[], Placement], job: Job) -> Failure | None:
    """Start the ranks of one node of a hostfile; the launcher of all nodes reads in the rendezvous how they end.

    Returns:
        a failure that no launcher has read, so that only this node's output can say why; None otherwise.

    Raises:
        LaunchError: this node could not join the rendezvous.
        SystemExit: a signal ended this node, and no launcher has read that.
    """
    from pretrain.launch.nodes.rendezvous import Rendezvous  # noqa: PLC0415  slow, as `_start_with_others`

    rendezvous = Rendezvous(nodes)  # until it has joined a signal ends this process at once
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, exit_with_signal)
    code: int = CRASH
    try:
        failure = _run_node_of_hostfile(rendezvous, make_placement, job)
        code = failure.exit_code if failure else ExitCode.COMPLETE
        if failure is None or failure.stopped:  # the launcher reads it, and mpirun must not end the other nodes
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
        return _run_node(rendezvous, make_placement(), job)
    except PretrainError as error:
        host, failure = socket.gethostname(), Failure.of(error, 0, with_traceback=False)
        text = f"{host}: {error}"
        node = dataclasses.replace(failure, text=text, of_launcher=True, place=rendezvous.rank, host=host)
        return rendezvous.report(node)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else CRASH
        rendezvous.report(dataclasses.replace(Failure.from_exit_code(0, code), asked=True))
        raise
    except Exception as error:  # noqa: BLE001  a plugin that cannot be imported, a system without memory for a process
        return rendezvous.report(Failure.of(error, 0, with_traceback=True))


def _start_with_others(placement: Placement, job: AnyJob, policy: RestartPolicy) -> Failure | None:
    """Start the ranks of one of several nodes; rank 0 will prepare the run, or the launcher that may restart it."""
    if policy.limit and isinstance(job, Job):
        from pretrain.launch.restarts.node_attempts import run_node_attempts  # noqa: PLC0415  as below

        return run_node_attempts(placement, job, policy, run_children)
    from pretrain.launch.nodes.rendezvous import Rendezvous  # noqa: PLC0415  one node starts its ranks without torch

    rendezvous = Rendezvous(placement.nodes)
    try:
        return _run_node(rendezvous, placement, job)
    finally:
        rendezvous.leave()


def _run_node(rendezvous: Rendezvous, placement: Placement, job: AnyJob) -> Failure | None:
    if placement.needs_own_machine:
        rendezvous.require_own_machine()
    worlds = rendezvous.worlds(placement.nproc)
    lay_out(placement.recipe, worlds[0].world_size)
    return run_ranks(job, worlds, rendezvous)
