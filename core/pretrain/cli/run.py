"""`pretrain run RECIPE`: train."""

from __future__ import annotations

from pathlib import Path

import click

from pretrain.errors import LaunchError, PretrainError
from pretrain.launch.nodes import Nodes
from pretrain.launch.ranks import current_world


def _count(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """Read a positive number; "auto" is None."""
    if value is None or value == "auto":
        return None
    if not value.isdecimal() or int(value) < 1:
        msg = f"'{value}' is neither a positive number nor 'auto'."
        raise click.BadParameter(msg)
    return int(value)


@click.command(short_help="Train a recipe.")
@click.argument("recipe", type=click.Path(path_type=Path), metavar="RECIPE")
@click.option("--backend", default="cpu", show_default=True, metavar="NAME", help="The device plugin.")
@click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Change a key of the recipe.")
@click.option(
    "--nproc",
    callback=_count,
    metavar="N|auto",
    help="Ranks to start on this node. auto (the default): one for each device; on the cpu tensor x pipeline size.",
)
@click.option("--nnodes", type=click.IntRange(min=1), metavar="N", help="Nodes; the same command is given on each.")
@click.option("--rdzv", metavar="HOST:PORT", help="Where the nodes meet; HOST is one of them.")
@click.option(
    "--node-rank", type=click.IntRange(min=0), metavar="K", help="This node's number, if it must be fixed; HOST's is 0."
)
@click.option("--run-dir", type=click.Path(path_type=Path), metavar="DIR", help="Default: runs/RECIPE-DATE-TIME.")
@click.option("--resume", is_flag=True, help="Continue the run of --run-dir from its last checkpoint.")
@click.option("--dry-run", is_flag=True, help="Show the complete recipe and its layout; start and write nothing.")
def command(
    *,
    recipe: Path,
    backend: str,
    overrides: tuple[str, ...],
    nproc: int | None,
    nnodes: int | None,
    rdzv: str | None,
    node_rank: int | None,
    run_dir: Path | None,
    resume: bool,
    dry_run: bool,
) -> int:
    """Train RECIPE, a YAML file.

    Under torchrun or srun each rank calls this; otherwise it starts its own ranks. Ctrl-C saves and leaves, a second
    one leaves at once.
    """
    from pretrain.launch.job import Job  # noqa: PLC0415  --help needs none of these
    from pretrain.launch.plan import make_plan  # noqa: PLC0415

    world = current_world()
    if world is not None and any(option is not None for option in (nproc, nnodes, rdzv, node_rank)):
        msg = (
            f"this is rank {world.rank} of {world.world_size}, started by torchrun or srun: "
            "--nproc, --nnodes, --rdzv and --node-rank have no effect.\nLeave them out, or start pretrain by itself."
        )
        raise LaunchError(msg)
    nodes = Nodes(count=nnodes or 1, rendezvous=rdzv, rank=node_rank)
    plan = make_plan(recipe, overrides, backend, nodes=nodes, nproc=nproc, world=world)
    if dry_run:
        from pretrain.launch.description import describe  # noqa: PLC0415

        click.echo(describe(plan))
        return 0
    job = Job(
        recipe=str(recipe),
        overrides=overrides,
        backend=backend,
        run_dir=None if run_dir is None else str(run_dir),
        resume=resume,
    )
    if world is not None:
        job.run(world)
        return 0
    from pretrain.launch.start import start  # noqa: PLC0415

    failure = start(plan, job)
    if failure is None:
        return 0
    if failure.expected:
        raise PretrainError(str(failure))
    click.echo(str(failure), err=True)
    return 1
