"""`pretrain run RECIPE`: train."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pretrain.cli.foreign_flags import RunCommand
from pretrain.cli.ranks import COUNTS, rank_options, show_failure, start_ranks, world_of_other_launcher
from pretrain.errors import LaunchError
from pretrain.launch.nodes.hostfile import read_hostfile
from pretrain.launch.nodes.launchers import LAUNCHERS, Hosted
from pretrain.launch.nodes.nodes import HOSTFILE_NODE, Nodes

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.launch.job import Job
    from pretrain.launch.rank_placement import Placement


@click.command(cls=RunCommand, short_help="Train a recipe.")
@click.argument("recipe", type=click.Path(path_type=Path), metavar="RECIPE")
@click.option("--backend", default="cpu", show_default=True, metavar="NAME", help="The device plugin.")
@click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Change a key of the recipe.")
@rank_options
@click.option(
    "--hostfile",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Start all nodes from this one. DeepSpeed's format: lines HOST slots=RANKS.",
)
@click.option(
    "--launcher",
    type=click.Choice(LAUNCHERS),
    help=f"The program that reaches the hosts of the hostfile.  [default: {LAUNCHERS[0]}]",
)
@click.option("--run-dir", type=click.Path(path_type=Path), metavar="DIR", help="Default: runs/RECIPE-DATE-TIME.")
@click.option("--resume", is_flag=True, help="Continue the run of --run-dir from its last checkpoint.")
@click.option(
    "--auto-resume", is_flag=True, help="Continue the run of --run-dir if there is one, else start it: for scripts."
)
@click.option(
    "--dry-run", is_flag=True, help="Show the complete recipe and its layout, check its files; start nothing."
)
def command(
    *,
    recipe: Path,
    backend: str,
    overrides: tuple[str, ...],
    nproc: int | None,
    nnodes: int | None,
    rdzv: str | None,
    node_rank: int | None,
    hostfile: Path | None,
    launcher: str | None,
    run_dir: Path | None,
    resume: bool,
    auto_resume: bool,
    dry_run: bool,
) -> int:
    """Train RECIPE, a YAML file.

    Under torchrun, srun or mpirun each rank calls this; otherwise it starts its own ranks. Ctrl-C saves a
    checkpoint and exits, a second one exits at once.
    """
    from pretrain.launch.job import Job  # noqa: PLC0415  --help needs none of these
    from pretrain.launch.rank_placement import make_hosted_placement, make_placement  # noqa: PLC0415

    of_run = os.environ.get(HOSTFILE_NODE, "")  # then the variables of mpirun or srun are a node's, not a rank's
    counted = any(option is not None for option in (nproc, nnodes, rdzv, node_rank))
    given = counted or hostfile is not None or launcher is not None
    options = f"--hostfile, --launcher, {COUNTS}"
    world = None if of_run else world_of_other_launcher(options=options, given=given)
    hosted = _hosted(hostfile, launcher, counted=counted)
    nodes = Nodes(count=nnodes or 1, rendezvous=rdzv, rank=node_rank, run=of_run)

    def place_run() -> Placement:
        if hosted is not None:
            return make_hosted_placement(recipe, overrides, backend, hosted)
        return make_placement(
            recipe, overrides, backend, nodes=nodes, nproc=nproc, world=world, needs_device=not dry_run
        )

    job = Job(
        recipe=str(recipe),
        overrides=overrides,
        backend=backend,
        run_dir=None if run_dir is None else str(run_dir),
        resume=resume and not auto_resume,
        auto_resume=auto_resume,
    )
    if nodes.of_hostfile:
        return _start_node_of_hostfile(nodes, place_run, job)
    placement = place_run()
    if dry_run:
        _show(placement, run_dir, resume=resume, auto=auto_resume)
        return 0
    for notice in filter(None, (placement.notice, placement.memory_notice)):
        click.echo(notice)
    return start_ranks(placement, job, world)


def _show(placement: Placement, run_dir: Path | None, *, resume: bool, auto: bool) -> None:
    """Show the placement of a run and check its input files (--dry-run)."""
    from pretrain.launch.description import describe  # noqa: PLC0415
    from pretrain.launch.inputs import require_inputs  # noqa: PLC0415
    from pretrain.launch.run_directory.directory import check_run_dir, holds_run  # noqa: PLC0415

    click.echo(describe(placement))
    if auto:
        resume = run_dir is not None and holds_run(run_dir)
    check_run_dir(run_dir, resume=resume, auto=auto)
    require_inputs(placement.recipe, checkpoint=not resume)


def _hosted(hostfile: Path | None, launcher: str | None, *, counted: bool) -> Hosted | None:
    """Return the hosts of the hostfile, or None without one."""
    if hostfile is None:
        if launcher is not None:
            msg = (
                f"--launcher {launcher} starts the ranks of a hostfile.\nPass --hostfile FILE as well, or leave it out."
            )
            raise LaunchError(msg)
        return None
    if counted:
        msg = f"--hostfile says where ranks run and how many: {COUNTS} have no effect.\nLeave out either side."
        raise LaunchError(msg)
    return Hosted(hosts=read_hostfile(hostfile), launcher=launcher or LAUNCHERS[0])


def _start_node_of_hostfile(nodes: Nodes, place_run: Callable[[], Placement], job: Job) -> int:
    from pretrain.launch.start import start_node_of_hostfile  # noqa: PLC0415

    return show_failure(start_node_of_hostfile(nodes, place_run, job))
