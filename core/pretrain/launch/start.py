"""Start of the ranks of a placement, and their end."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.launch.job import Job
from pretrain.launch.ranks import run_children, run_ranks
from pretrain.launch.restarts import NO_RESTARTS, Restarts, run_attempts
from pretrain.launch.world import LOCALHOST, free_port, node_worlds

if TYPE_CHECKING:
    from pretrain.launch.job import AnyJob
    from pretrain.launch.placement import Placement
    from pretrain.launch.processes.failure import Failure
    from pretrain.launch.restarts import RestartPolicy


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
    if placement.hosts is not None and isinstance(job, Job):
        from pretrain.launch.nodes.hosts import start_hosts  # noqa: PLC0415  most runs have no hostfile

        return start_hosts(placement.hosts, job, placement.recipe, policy)
    if placement.nodes.count > 1:
        return _start_with_others(placement, job, policy)
    with ExitStack() as lock:
        prepared = job.prepared_by_launcher(placement.recipe, lock)
        if policy.limit and isinstance(prepared, Job):
            return _run_with_restarts(placement, prepared, policy)
        return run_ranks(prepared, node_worlds([placement.nproc], 0, LOCALHOST, free_port()))


def _start_with_others(placement: Placement, job: AnyJob, policy: RestartPolicy) -> Failure | None:
    """Start the ranks of one of several nodes."""
    from pretrain.launch.node_attempts import run_node  # noqa: PLC0415  one node starts its ranks without torch

    return run_node(placement, job, policy, run_children)


def _run_with_restarts(placement: Placement, job: Job, policy: RestartPolicy) -> Failure | None:
    """Run a prepared job, whose directory this process holds, in processes that can be replaced."""
    restarts = Restarts.of_run(policy, placement.recipe, Path(str(job.run_dir)))

    def attempt() -> Failure | None:
        worlds = node_worlds([placement.nproc], 0, LOCALHOST, free_port())
        return run_children(job.started_again() if restarts.count else job, worlds)

    return run_attempts(attempt, restarts)
