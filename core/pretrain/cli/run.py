"""`pretrain run RECIPE`: train."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

import click

from pretrain.cli.options import COUNTS, LocalPath, RankCounts, RunCommand, backend_option, rank_options, set_option
from pretrain.errors import LaunchError, PretrainError
from pretrain.exit_codes import ExitCode
from pretrain.launch.nodes.nodes import HOSTFILE_NODE, HOSTFILE_SLOTS, Nodes, read_hostfile
from pretrain.launch.schedulers import current_world, own_node

if TYPE_CHECKING:
    from pathlib import Path

    from pretrain.launch.job import AnyJob
    from pretrain.launch.nodes.nodes import Hosts
    from pretrain.launch.placement import Placement
    from pretrain.launch.processes.failure import Failure
    from pretrain.launch.restarts import RestartPolicy
    from pretrain.launch.run_directory import Resume
    from pretrain.launch.world import World


@click.command(cls=RunCommand)
@click.argument("recipe", type=LocalPath(), metavar="RECIPE")
@backend_option
@set_option
@rank_options
@click.option(
    "--hostfile",
    type=LocalPath(),
    metavar="FILE",
    help="Start all nodes from this one, by pdsh over ssh. DeepSpeed's format: lines HOST slots=RANKS.",
)
@click.option("--run-dir", type=LocalPath(), metavar="DIR", help="Default: runs/RECIPE-DATE-TIME.")
@click.option(
    "--resume",
    type=click.Choice(["run", "auto"]),
    metavar="[auto]",
    help="Continue the run of --run-dir from its last checkpoint; --resume auto starts it if there is none, so that "
    "one command can be repeated.",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Start the ranks again from the last checkpoint when one fails, up to N times. SIGTERM, to any node, ends the "
    "run.",
)
@click.option(
    "--allow-fewer-nodes",
    type=click.IntRange(min=1),
    metavar="M",
    help="Restart with at least M nodes, without those whose launchers were killed or are silent.",
)
@click.option(
    "--spares",
    type=click.IntRange(min=0),
    default=0,
    metavar="K",
    help="Up to K nodes beyond --nnodes, with the same command, wait and take the place of one that is lost.",
)
@click.option(
    "--external-rdzv",
    is_flag=True,
    help="`pretrain rendezvous` serves --rdzv, not node 0: the loss of any node is followed by a restart.",
)
@click.option(
    "--dry-run", is_flag=True, help="Show the complete recipe and its layout, and check its files; start nothing."
)
def command(
    *,
    recipe: Path,
    backend: str,
    overrides: tuple[str, ...],
    hostfile: Path | None,
    run_dir: Path | None,
    resume: Literal["run", "auto"] | None,
    max_restarts: int,
    allow_fewer_nodes: int | None,
    spares: int,
    external_rdzv: bool,
    dry_run: bool,
    **rank_counts: Any,
) -> int:
    """Train RECIPE, a YAML file.

    It starts its own ranks, or is one of torchrun's, srun's or mpirun's. With --nnodes, or in a PyTorchJob or a
    SkyPilot task, it is started once on each node and starts that node's ranks. Ctrl-C saves a checkpoint and exits, a
    second one exits at once.
    """
    from pretrain.launch.job import Job  # noqa: PLC0415  --help needs none of these
    from pretrain.launch.placement import make_hosted_placement, make_placement  # noqa: PLC0415
    from pretrain.launch.restarts import RestartPolicy  # noqa: PLC0415

    counts = RankCounts(**rank_counts)
    _prepare(run_dir, resume or "no", hosted=hostfile is not None, has_nodes=(counts.nnodes or 1) > 1)
    policy = RestartPolicy(limit=max_restarts, fewest_nodes=allow_fewer_nodes)
    hosts = _hosts(hostfile, counted=counts.given, restarting=spares > 0 or external_rdzv)
    world, nodes, nproc = place_of_process(counts, hosted=hosts is not None, spares=spares, external=external_rdzv)
    _require_own_ranks(policy, world)
    policy.require_nodes(nodes.count if hosts is None else len(hosts.members), spares=spares, external=external_rdzv)

    def place_run() -> Placement:
        if hosts is not None:
            return make_hosted_placement(recipe, overrides, backend, hosts)
        return make_placement(
            recipe, overrides, backend, nodes=nodes, nproc=nproc, world=world, needs_device=not dry_run
        )

    job = Job(
        recipe=str(recipe),
        overrides=overrides,
        backend=backend,
        run_dir=None if run_dir is None else str(run_dir),
        resume=resume or "no",
    )
    if nodes.of_hostfile:
        from pretrain.launch.node_attempts import run_node_of_hostfile  # noqa: PLC0415  it imports torch

        return show_failure(run_node_of_hostfile(nodes, place_run, job))
    placement = place_run()
    if dry_run:
        _show(placement, run_dir, resume or "no")
        return 0
    for notice in filter(None, (placement.notice, placement.memory_notice)):
        click.echo(notice)
    return start_ranks(placement, job, world, policy)


def _prepare(run_dir: Path | None, resume: Resume, *, hosted: bool, has_nodes: bool) -> None:
    """Do what must come before the import of torch."""
    from pretrain.launch.processes.node_cache import use_node_cache  # noqa: PLC0415
    from pretrain.launch.run_directory import check_run_dir  # noqa: PLC0415
    from pretrain.launch.world import warn_of_no_lost_connection  # noqa: PLC0415

    if run_dir is None:
        check_run_dir(None, resume)
    if not hosted:  # the nodes of a hostfile use their own caches
        use_node_cache()
    if hosted or has_nodes:
        warn_of_no_lost_connection()


def _require_own_ranks(policy: RestartPolicy, world: World | None) -> None:
    """Check that the ranks which are to be started again are this process's own."""
    if policy.limit and world is not None:
        msg = (
            f"--max-restarts: this is rank {world.rank} of {world.world_size}, started by torchrun, srun or mpirun, "
            "which alone can start it again.\n"
            "Leave it out and pass --run-dir DIR --resume auto; torchrun has --max-restarts too, Slurm --requeue. Or "
            "start one process on each node, with --nnodes: it restarts its ranks."
        )
        raise LaunchError(msg)


def _show(placement: Placement, run_dir: Path | None, resume: Resume) -> None:
    """Show the placement of a run and make the checks of its start (--dry-run)."""
    from pretrain.launch.placement import describe  # noqa: PLC0415
    from pretrain.launch.start_checks import CHECKS, Start  # noqa: PLC0415

    click.echo(describe(placement))
    start = Start(recipe=placement.recipe, run_dir=run_dir, resume=resume)
    if found := [str(problem) for check in CHECKS if (problem := check.problem(start))]:
        raise PretrainError("\n".join(found))


def _hosts(hostfile: Path | None, *, counted: bool, restarting: bool) -> Hosts | None:
    if hostfile is None:
        return None
    if restarting:
        msg = (
            "--spares and --external-rdzv have no effect with --hostfile, whose first host serves the rendezvous.\n"
            "Start one process on each node, with --nnodes; or list all hosts and pass --allow-fewer-nodes M."
        )
        raise LaunchError(msg)
    if counted:
        msg = f"--hostfile says where ranks run and how many: {COUNTS} have no effect.\nLeave out one or the other."
        raise LaunchError(msg)
    return read_hostfile(hostfile)


def place_of_process(
    counts: RankCounts, *, hosted: bool = False, spares: int = 0, external: bool = False
) -> tuple[World | None, Nodes, int | None]:
    """Return this process's place if another program started it as a rank; the nodes; and the ranks to start here."""
    # The nodes that a scheduler counts are those that train, and the spares of which --nnodes may want fewer.
    count = counts.nnodes or 1
    if of_run := os.environ.get(HOSTFILE_NODE):
        nodes = Nodes(count=count, rendezvous=counts.rdzv, rank=counts.node_rank, run=of_run)
        return None, nodes, int(os.environ[HOSTFILE_SLOTS].split(",")[nodes.rank or 0])
    node = None if hosted else own_node(wanted=counts.given or spares > 0 or external)
    if node is not None and (counts.nnodes is None or node.count - spares <= counts.nnodes <= node.count):
        rank = node.rank if counts.node_rank is None else counts.node_rank
        rendezvous = counts.rdzv or ("" if external else node.rendezvous)
        if not rendezvous:
            server = "`pretrain rendezvous`" if external else "node 0"
            msg = f"the variables of {node.by} say node {rank} of {node.count}, but not the address of {server}.\n"
            raise LaunchError(msg + "Pass --rdzv HOST:PORT, or set MASTER_ADDR (mpirun -x MASTER_ADDR=HOST).")
        count = counts.nnodes or node.count - spares
        if count < 1:
            msg = f"--spares {spares}: {node.by} has started {node.count} nodes: none is left to train.\nPass fewer."
            raise LaunchError(msg)
        nodes = Nodes(count=count, rendezvous=rendezvous, rank=rank, spares=spares, external=external)
        text = f"node {rank} of {node.count}, by the variables of {node.by}; rendezvous {nodes.rendezvous}"
        click.echo(text, err=True)
        return None, nodes, counts.nproc or node.nproc
    world = current_world() if node is None else None
    if world is not None and (hosted or counts.given):
        msg = (
            f"this is rank {world.rank} of {world.world_size}, started by torchrun, srun or mpirun: "
            f"--hostfile, {COUNTS} have no effect.\n"
            "Leave them out; or start one process on each node, which starts the ranks there: srun "
            "--ntasks-per-node=1, mpirun -npernode 1."
        )
        raise LaunchError(msg)
    nodes = Nodes(count=count, rendezvous=counts.rdzv, rank=counts.node_rank, spares=spares, external=external)
    return world, nodes, counts.nproc


def start_ranks(placement: Placement, job: AnyJob, world: World | None, policy: RestartPolicy | None = None) -> int:
    """Run the job as the rank that this process is, or on ranks that are started; return the exit code."""
    if world is not None:
        return job.run(world).code
    from pretrain.launch.restarts import NO_RESTARTS  # noqa: PLC0415  --help needs none of it
    from pretrain.launch.start import start  # noqa: PLC0415

    return show_failure(start(placement, job, policy or NO_RESTARTS))


def show_failure(failure: Failure | None) -> int:
    """Show why ranks failed, or why they have stopped if nobody here asked them to; return the exit code."""
    if failure is None:
        return ExitCode.COMPLETE
    if failure.expected:
        raise PretrainError(str(failure))
    if not (failure.stopped and failure.asked):
        click.echo(str(failure), err=True)
    return failure.exit_code
