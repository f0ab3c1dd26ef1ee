"""From a plan to running ranks, and their end."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.launch.processes.children import Processes
from pretrain.launch.processes.supervision import supervise
from pretrain.launch.run_directory.preparation import prepare_run
from pretrain.launch.world import LOCALHOST, free_port, node_worlds
from pretrain.recipe.layout import lay_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.launch.job import Job
    from pretrain.launch.nodes.launchers import Hosted
    from pretrain.launch.nodes.rendezvous import Meeting
    from pretrain.launch.plan import Plan
    from pretrain.launch.processes.failure import Failure
    from pretrain.launch.world import World


def start(plan: Plan, job: Job) -> Failure | None:
    """Prepare the run, start this node's ranks, or those of all hosts of a hostfile, and wait for them.

    Returns:
        why a rank failed; None if none did.

    Raises:
        PretrainError: the run cannot be prepared; or raised by the training, in a world of one rank.
        SystemExit: a signal stopped the ranks before they could leave by themselves.
    """
    if plan.nodes.count > 1:
        return _start_with_others(plan, job)
    if plan.hosted is not None:
        plan.hosted.require()
    with ExitStack() as lock:
        given = Path(job.run_dir) if job.run_dir else None
        prepared = prepare_run(plan.recipe, given, lock, resume=job.resume, auto=job.auto_resume)
        known = dataclasses.replace(job, run_dir=str(prepared.run_dir), resume=prepared.resume, prepared=True)
        if plan.hosted is not None:
            return _start_hosted(plan.hosted, known)
        return run_ranks(known, node_worlds([plan.nproc], 0, LOCALHOST, free_port()))


def run_ranks(job: Job, worlds: Sequence[World], meeting: Meeting | None = None) -> Failure | None:
    """Run the job on every rank of this node; returns and raises as `start`.

    A world of one rank is this process: it starts faster, and Ctrl-C and errors need no detour.
    """
    if worlds[0].world_size == 1:
        job.run(worlds[0])
        return None
    with Processes(job, worlds) as processes:
        failure = supervise(processes, meeting.heard if meeting else None)
    return meeting.settle(failure) if failure and meeting else failure


def _start_with_others(plan: Plan, job: Job) -> Failure | None:
    """Start the ranks of one of several nodes; rank 0 will prepare the run."""
    from pretrain.launch.nodes.rendezvous import Meeting  # noqa: PLC0415  one node needs no torch to start its ranks

    meeting = Meeting(plan.nodes)
    try:
        worlds = meeting.worlds(plan.nproc)
        lay_out(plan.recipe, worlds[0].world_size)
        return run_ranks(job, worlds, meeting)
    finally:
        meeting.leave()


def _start_hosted(hosted: Hosted, job: Job) -> Failure | None:
    from pretrain.launch.hosted_ranks import run_hosted  # noqa: PLC0415  most runs have no hostfile

    return run_hosted(job, hosted)
