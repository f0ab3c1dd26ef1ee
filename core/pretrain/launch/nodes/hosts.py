"""A run on the hosts of a hostfile: a node on each, and again on all, or on those that answer, after a failure."""

from __future__ import annotations

import dataclasses
import itertools
import os
import secrets
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pretrain.atomic_files import existing_folder
from pretrain.errors import LaunchError
from pretrain.launch.nodes import pdsh
from pretrain.launch.nodes.nodes import HOSTFILE_NODE, HOSTFILE_SLOTS, largest_fitting
from pretrain.launch.processes.failure import CRASH, Failure
from pretrain.launch.processes.supervision import supervise
from pretrain.launch.restarts import Restarts, run_attempts
from pretrain.launch.run_directory import RUNS, check_run_dir, new_run_dir
from pretrain.launch.run_lock import remove_unused
from pretrain.plugins.host.discovery import find_backend
from pretrain.plugins.host.manager import load_alone
from pretrain.recipe.layout import lay_out

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.launch.job import Job
    from pretrain.launch.nodes.nodes import Hosts
    from pretrain.launch.restarts import RestartPolicy
    from pretrain.recipe import Recipe

_PATIENCE = 60.0
"""Seconds that hosts get to join at a restart that may leave them out: they have started Python and imported
torch a while ago."""


def start_hosts(hosts: Hosts, job: Job, recipe: Recipe, policy: RestartPolicy) -> Failure | None:
    """Check what can be checked here, and run the job on every host, whose rank 0 prepares the run."""
    pdsh.require_pdsh()
    check_run_dir(Path(job.run_dir) if job.run_dir else None, job.resume)
    return run_host_attempts(hosts, job, recipe, policy) if policy.limit else run_on_hosts(hosts, job)


def run_on_hosts(
    hosts: Hosts, job: Job, attempt: int = 0, patience: float | None = None, *, may_restart: bool = False
) -> Failure | None:
    """Run `pretrain run --nnodes ...` on every host, and wait for all."""
    # `attempt` counts the starts before; hosts get `patience` seconds to join, None: as long as a first start may take.
    # Where another attempt may follow, it must not meet nodes of this one.
    backend = load_alone(find_backend(job.backend)).backend
    identity = secrets.token_hex(8)
    slots = ",".join(str(host.slots) for host in hosts.members)
    variables = pdsh.exported_variables(os.environ, backend) | {HOSTFILE_NODE: identity, HOSTFILE_SLOTS: slots}
    pdsh.warn_of_own_variables(os.environ, backend)
    endpoint = pdsh.rendezvous_endpoint(hosts, os.environ, attempt)
    nodes = ["--nnodes", str(len(hosts.members)), "--rdzv", ":".join(map(str, endpoint))]
    run = [sys.executable, "-P", "-m", "pretrain.cli.main", *job.arguments(), *nodes]
    # ssh may be configured to hand variables on.
    environment = {name: value for name, value in os.environ.items() if name not in backend.own_variables}
    from pretrain.launch.nodes.remote_nodes import LauncherMember, RemoteNodes  # noqa: PLC0415  torch is slow

    folder = existing_folder(Path(job.run_dir) if job.run_dir else RUNS)
    with pdsh.variables_file(folder, variables) as file:
        command = pdsh.pdsh_command(hosts, run, file)
        # Every node has read its variables before it joins.
        all_came = partial(pdsh.remove, file)
        member = LauncherMember(endpoint, hosts.names, identity, all_came, patience, at_restart=attempt > 0)
        with RemoteNodes(command, environment, member, may_restart=may_restart) as remote:
            return supervise(remote)


def run_host_attempts(hosts: Hosts, job: Job, recipe: Recipe, policy: RestartPolicy) -> Failure | None:
    """Run the job on the hosts, again after a failure; this process names the run directory if the user does not."""
    made = None if job.run_dir else new_run_dir(Path(recipe.source).stem)
    job = job if made is None else dataclasses.replace(job, run_dir=str(made))
    restarts, starts = Restarts.of_run(policy, recipe, Path(str(job.run_dir))), itertools.count()

    def attempt() -> Failure | None:
        if not restarts.count:
            return run_on_hosts(hosts, job, next(starts), may_restart=True)
        again, left = dataclasses.replace(job, resume="auto"), hosts
        patience = None if policy.fewest_nodes is None else _PATIENCE
        while True:
            failure = _run_again(partial(run_on_hosts, left, again, next(starts), patience, may_restart=True))
            if failure is None or not failure.absent or policy.fewest_nodes is None:
                return failure
            click.echo(failure.text.splitlines()[0], err=True)
            left = _without_absent(left, failure, recipe, policy.fewest_nodes)

    try:
        return run_attempts(attempt, restarts)
    finally:
        if made is not None:
            remove_unused(made)


def _run_again(run: Callable[[], Failure | None]) -> Failure | None:
    """Run on the hosts; that some cannot be reached is no user's mistake now: the run had begun."""
    try:
        failure = run()
    except pdsh.UnreachedError as error:
        failure = Failure(text=str(error), absent=error.hosts)
    return dataclasses.replace(failure, exit_code=CRASH) if failure is not None and failure.passing else failure


def _without_absent(hosts: Hosts, failure: Failure, recipe: Recipe, fewest: int) -> Hosts:
    """Return as many of the hosts that can take part as the layout takes."""
    left = hosts.without(failure.absent)
    if left is None or len(left.members) < fewest:
        msg = f"{failure.text.splitlines()[0]}\n--allow-fewer-nodes {fewest}: fewer than that are left."
        raise LaunchError(msg)
    members = left.members
    count = largest_fitting([host.slots for host in members], fewest, partial(lay_out, recipe))
    fitting = left.without([host.name for host in members[count:]]) or left
    click.echo(f"restart without {', '.join(failure.absent)}: {fitting}", err=True)
    return fitting
