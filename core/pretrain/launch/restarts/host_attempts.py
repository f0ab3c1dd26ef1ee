"""Attempts of a run on the hosts of a hostfile: each starts a node on every host again, or on those that answer."""

from __future__ import annotations

import dataclasses
import itertools
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

from pretrain.errors import LaunchError
from pretrain.launch.nodes.arrivals import largest_fitting
from pretrain.launch.nodes.host_addresses import UnreachedError
from pretrain.launch.processes.failure import CRASH, Failure
from pretrain.launch.restarts.attempts import run_attempts
from pretrain.launch.restarts.restarts import Restarts
from pretrain.launch.run_directory.directory import new_run_dir
from pretrain.launch.run_directory.lock import remove_unused
from pretrain.recipe.layout import lay_out

if TYPE_CHECKING:
    from pretrain.launch.job import Job
    from pretrain.launch.nodes.launchers import Hosted
    from pretrain.launch.restarts.restart_policy import RestartPolicy
    from pretrain.recipe import Recipe

_PATIENCE = 60.0
"""Seconds that hosts get to send word at a restart that may go on without them: they have started Python and imported
torch a while ago."""


class RunOnHosts(Protocol):
    """Run of the job on all hosts, once; see `pretrain.launch.hosts.run_on_hosts`."""

    def __call__(self, hosted: Hosted, job: Job, attempt: int, patience: float | None) -> Failure | None:
        """Return why it failed."""
        ...


def run_host_attempts(
    hosted: Hosted, job: Job, recipe: Recipe, policy: RestartPolicy, run_on_hosts: RunOnHosts
) -> Failure | None:
    """Run the job on the hosts, again after a failure; this process names the run directory if the user does not.

    Returns:
        why the last attempt failed; None if it did not.

    Raises:
        PretrainError: the hosts cannot be reached, or those that are left do not fit the recipe.
        SystemExit: a signal asked the run to end.
    """
    made = None if job.run_dir else new_run_dir(Path(recipe.source).stem)
    job = job if made is None else dataclasses.replace(job, run_dir=str(made))
    restarts = Restarts.of_run(policy, recipe, Path(str(job.run_dir)))
    attempt = _Attempt(hosted, job, recipe, policy, restarts, run_on_hosts)
    try:
        return run_attempts(attempt.run, restarts)
    finally:
        if made is not None:
            remove_unused(made)


@dataclasses.dataclass(frozen=True, slots=True)
class _Attempt:
    hosted: Hosted
    job: Job
    recipe: Recipe
    policy: RestartPolicy
    restarts: Restarts
    run_on_hosts: RunOnHosts
    starts: itertools.count[int] = dataclasses.field(default_factory=itertools.count)

    def run(self) -> Failure | None:
        """Run the job on all hosts; at a restart that may, without those that send no word."""
        count = self.restarts.count
        if not count:
            return self.run_on_hosts(self.hosted, self.job, next(self.starts), None)
        again = dataclasses.replace(self.job, resume="auto")
        if self.policy.fewest_nodes is None:
            return self._run_on(self.hosted, again, None)
        hosted = self.hosted
        while True:
            failure = self._run_on(hosted, again, _PATIENCE)
            if failure is None or not failure.absent:
                return failure
            click.echo(failure.text.splitlines()[0], err=True)
            hosted = self._smaller(hosted, failure)

    def _run_on(self, hosted: Hosted, job: Job, patience: float | None) -> Failure | None:
        try:
            failure = self.run_on_hosts(hosted, job, next(self.starts), patience)
        except UnreachedError as error:
            failure = Failure(rank=0, when=time.time(), exit_code=CRASH, text=str(error), absent=error.hosts)
        if failure is not None and failure.passing:  # no user's mistake: the run had begun
            return dataclasses.replace(failure, exit_code=CRASH)
        return failure

    def _smaller(self, hosted: Hosted, failure: Failure) -> Hosted:
        """Return as many of the hosts that can take part as the layout takes.

        Raises:
            LaunchError: they are fewer than allowed.
            RecipeError: no number of them fits.
        """
        left = hosted.without(failure.absent)
        fewest = self.policy.fewest_nodes or 1
        if left is None or len(left.hosts.members) < fewest:
            msg = f"{failure.text.splitlines()[0]}\n--allow-fewer-nodes {fewest}: fewer than that are left."
            raise LaunchError(msg)
        members = left.hosts.members
        count = largest_fitting([host.slots for host in members], fewest, partial(lay_out, self.recipe))
        fitting = left.without([host.name for host in members[count:]]) or left
        click.echo(f"restart without {', '.join(failure.absent)}: {fitting.hosts}", err=True)
        return fitting
