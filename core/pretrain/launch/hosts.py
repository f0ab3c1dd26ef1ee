"""Start of a node on every host of a hostfile, and their end."""

from __future__ import annotations

import functools
import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.atomic_files import existing_folder
from pretrain.launch.nodes.exported_variables import exported_variables, warn_of_own_variables
from pretrain.launch.nodes.nodes import HOSTFILE_NODE
from pretrain.launch.nodes.variables_file import remove, variables_file
from pretrain.launch.processes.supervision import supervise
from pretrain.launch.restarts.restart_policy import NO_RESTARTS
from pretrain.launch.run_directory.directory import RUNS, check_run_dir
from pretrain.plugins.host.discovery import find_backend
from pretrain.plugins.host.manager import load_alone

if TYPE_CHECKING:
    from pretrain.launch.job import Job
    from pretrain.launch.nodes.launchers import Hosted
    from pretrain.launch.processes.failure import Failure
    from pretrain.launch.restarts.restart_policy import RestartPolicy
    from pretrain.recipe import Recipe


def start_hosts(
    hosted: Hosted, job: Job, recipe: Recipe | None = None, policy: RestartPolicy = NO_RESTARTS
) -> Failure | None:
    """Check what can be checked here, and run the job on every host; rank 0 will prepare the run.

    Args:
        hosted: the hosts.
        job: of their ranks.
        recipe: of the job; needed for restarts.
        policy: of restarts.

    Returns and raises as `pretrain.launch.start.start`.
    """
    hosted.require()
    check_run_dir(Path(job.run_dir) if job.run_dir else None, job.resume)
    if policy.limit and recipe is not None:
        from pretrain.launch.restarts.host_attempts import run_host_attempts  # noqa: PLC0415  most have no restarts

        return run_host_attempts(hosted, job, recipe, policy, functools.partial(run_on_hosts, may_restart=True))
    return run_on_hosts(hosted, job)


def run_on_hosts(
    hosted: Hosted, job: Job, attempt: int = 0, patience: float | None = None, *, may_restart: bool = False
) -> Failure | None:
    """Run `pretrain run --nnodes ...` on every host, and wait for all.

    Args:
        hosted: the hosts.
        job: of their ranks.
        attempt: number of starts before.
        patience: seconds that hosts get to send word; None: as long as their first start may take.
        may_restart: whether another attempt may follow, which must not meet nodes of this one.
    """
    backend = load_alone(find_backend(job.backend)).backend
    identity = secrets.token_hex(8)
    variables = exported_variables(os.environ, backend) | {HOSTFILE_NODE: identity}
    warn_of_own_variables(os.environ, backend)
    endpoint, hosts = hosted.endpoint(os.environ, attempt), [host.name for host in hosted.hosts.members]
    nodes = ["--nnodes", str(len(hosts)), "--rdzv", ":".join(map(str, endpoint))]
    run = [sys.executable, "-P", "-m", "pretrain.cli.main", *job.arguments(), *nodes]
    # srun hands on every variable that it has.
    environment = {name: value for name, value in os.environ.items() if name not in backend.own_variables}
    from pretrain.launch.nodes.launcher_member import LauncherMember  # noqa: PLC0415  torch is slow: after the checks
    from pretrain.launch.nodes.remote_nodes import RemoteNodes  # noqa: PLC0415

    folder = existing_folder(Path(job.run_dir) if job.run_dir else RUNS)
    with variables_file(folder, variables) as file:
        command = hosted.command(run, file, os.environ)
        # Every node has read its variables before it joins.
        all_came = functools.partial(remove, file)
        member = LauncherMember(endpoint, hosts, identity, all_came, patience, at_restart=attempt > 0)
        with RemoteNodes(command, environment, member, may_restart=may_restart) as remote:
            return supervise(remote)
