"""Start of the ranks of a placement, and their end."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.launch.job import Job
from pretrain.launch.processes.children import Processes
from pretrain.launch.processes.failure import Failure
from pretrain.launch.processes.rank_starter import RankStarter
from pretrain.launch.restarts import NO_RESTARTS, Restarts, run_attempts
from pretrain.launch.world import LOCALHOST, free_port, node_worlds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.launch.job import AnyJob
    from pretrain.launch.placement import Placement
    from pretrain.launch.restarts import RestartPolicy
    from pretrain.launch.world import World


def start(placement: Placement, job: AnyJob, policy: RestartPolicy = NO_RESTARTS) -> Failure | None:
    """Prepare the job, start this node's ranks, or those of all hosts of a hostfile, and wait for them."""
    # Returns why a rank failed, or why the training has `stopped` before its end; None if it is complete. SystemExit
    # says that a signal stopped the ranks before they could leave by themselves.
    if placement.hosts is not None and isinstance(job, Job):
        from pretrain.launch.nodes.hosts import start_hosts  # noqa: PLC0415  most runs have no hostfile

        return start_hosts(placement.hosts, job, placement.recipe, policy)
    if placement.nodes.count > 1:
        from pretrain.launch.node_attempts import run_node  # noqa: PLC0415  one node starts its ranks without torch

        return run_node(placement, job, policy)
    with ExitStack() as lock, RankStarter(forks=placement.forks) as starter:
        prepared = job.prepared_by_launcher(placement.recipe, lock)
        if policy.limit and isinstance(prepared, Job):
            return _run_with_restarts(placement, prepared, policy, starter)
        return run_ranks(prepared, node_worlds([placement.nproc], 0, LOCALHOST, free_port()), starter)


def _run_with_restarts(placement: Placement, job: Job, policy: RestartPolicy, starter: RankStarter) -> Failure | None:
    """Run a prepared job, whose directory this process holds, in processes that can be replaced."""
    restarts = Restarts.of_run(policy, placement.recipe, Path(str(job.run_dir)))

    def attempt() -> Failure | None:
        worlds = node_worlds([placement.nproc], 0, LOCALHOST, free_port())
        return Processes(job.started_again() if restarts.count else job, worlds, starter).run()

    return run_attempts(attempt, restarts)


def run_ranks(job: AnyJob, worlds: Sequence[World], starter: RankStarter | None = None) -> Failure | None:
    """Run the job on every rank of a run on one node; a world of one rank is this process, which starts faster."""
    if worlds[0].world_size == 1:
        end = job.run(worlds[0])
        return dataclasses.replace(Failure.of_stop(end), asked=True) if end.code else None
    return Processes(job, worlds, starter).run()
