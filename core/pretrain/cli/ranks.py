"""Options that say where ranks run, and their start; for commands that need ranks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pretrain.errors import LaunchError, PretrainError
from pretrain.exit_codes import ExitCode
from pretrain.launch.nodes.nodes import HOSTFILE_NODE, HOSTFILE_SLOTS, Nodes
from pretrain.launch.schedulers import current_world, own_node

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.launch.job import AnyJob
    from pretrain.launch.placement import Placement
    from pretrain.launch.processes.failure import Failure
    from pretrain.launch.restarts import RestartPolicy
    from pretrain.launch.world import World

F = TypeVar("F", bound="Callable[..., Any]")


def _count(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """Read a positive number; "auto" is None."""
    if value is None or value == "auto":
        return None
    if not value.isdecimal() or int(value) < 1:
        msg = f"'{value}' is neither a positive number nor 'auto'."
        raise click.BadParameter(msg)
    return int(value)


_OPTIONS = (
    click.option(
        "--nproc",
        callback=_count,
        metavar="N|auto",
        help="Ranks to start on this node. auto (the default): one for each device, as far as the batch can be divided;"
        " on the cpu tensor x pipeline size.",
    ),
    click.option("--nnodes", type=click.IntRange(min=1), metavar="N", help="Nodes; the same command is given on each."),
    click.option("--rdzv", metavar="HOST:PORT", help="Address of the rendezvous; HOST is one of the nodes."),
    click.option(
        "--node-rank",
        type=click.IntRange(min=0),
        metavar="K",
        help="This node's rank, if it must be fixed; HOST has 0.",
    ),
)
COUNTS = "--nproc, --nnodes, --rdzv and --node-rank"


def rank_options(command: F) -> F:
    """Give a command the options `COUNTS`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """Values of the options `COUNTS`."""

    nproc: int | None
    nnodes: int | None
    rdzv: str | None
    node_rank: int | None

    @property
    def given(self) -> bool:
        """Say whether any of them is."""
        return any(value is not None for value in (self.nproc, self.nnodes, self.rdzv, self.node_rank))


def place_of_process(counts: Counts, *, hosted: bool = False) -> tuple[World | None, Nodes, int | None]:
    """Return where this process belongs, as options and the variables of other programs say it.

    Args:
        counts: the options; what they say wins.
        hosted: whether a hostfile says where ranks run.

    Returns:
        its place, if another program has started it as a rank, or else None; the nodes; and the ranks to start here.

    Raises:
        LaunchError: it is a rank of another program, and is to start ranks; or the options do not fit.
    """
    count = counts.nnodes or 1
    if of_run := os.environ.get(HOSTFILE_NODE):
        nodes = Nodes(count=count, rendezvous=counts.rdzv, rank=counts.node_rank, run=of_run)
        return None, nodes, int(os.environ[HOSTFILE_SLOTS].split(",")[nodes.rank or 0])
    node = None if hosted else own_node(wanted=counts.given)
    if node is not None and counts.nnodes in {None, node.count}:
        rank = node.rank if counts.node_rank is None else counts.node_rank
        rendezvous = counts.rdzv or node.rendezvous
        if not rendezvous:
            msg = f"node {rank} of {node.count}, by the variables of {node.by}, which do not tell node 0's address.\n"
            raise LaunchError(msg + "Give --rdzv HOST:PORT, or set MASTER_ADDR (mpirun -x MASTER_ADDR=HOST).")
        nodes = Nodes(count=node.count, rendezvous=rendezvous, rank=rank)
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
    return world, Nodes(count=count, rendezvous=counts.rdzv, rank=counts.node_rank), counts.nproc


def start_ranks(placement: Placement, job: AnyJob, world: World | None, policy: RestartPolicy | None = None) -> int:
    """Run the job as the rank that this process is, or on ranks that are started; return the exit code.

    Args:
        placement: where the ranks run.
        job: what they do.
        world: this rank's place, if another program started it.
        policy: of restarts; None: there are none.
    """
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
