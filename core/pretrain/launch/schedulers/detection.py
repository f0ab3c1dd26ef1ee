"""Detection of ranks and nodes that another program started: by variables of torchrun and of schedulers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pretrain.errors import LaunchError
from pretrain.launch.schedulers import kubeflow, openmpi, skypilot, slurm
from pretrain.launch.schedulers.integer_variable import integer_variable, port_variable
from pretrain.launch.world import World

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.launch.schedulers.own_node import OwnNode


def current_world(environ: Mapping[str, str] | None = None) -> World | None:
    """Return this process's place if another program started it as a rank, else None.

    torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT) win over Open MPI's and Slurm's,
    because torchrun is often started by srun; Open MPI's win over Slurm's, because mpirun reaches its hosts by srun.

    Args:
        environ: `os.environ` if None.

    Raises:
        LaunchError: some of the variables are missing or not numbers.
    """
    environ = os.environ if environ is None else environ
    if kubeflow.own_node(environ, wanted=False):
        return None
    if "RANK" in environ and "WORLD_SIZE" in environ:
        return _torchrun(environ)
    return openmpi.current_world(environ) or slurm.current_world(environ)


def own_node(*, wanted: bool, environ: Mapping[str, str] | None = None) -> OwnNode | None:
    """Return the node on which this process starts the ranks itself, if a scheduler started it on each of several.

    A process that mpirun or srun has started alone on its node is a rank, unless it is to be a node.

    Args:
        wanted: the command has options of nodes.
        environ: `os.environ` if None.

    Raises:
        LaunchError: some of the variables are missing or not numbers.
    """
    environ = os.environ if environ is None else environ
    if {"RANK", "WORLD_SIZE", "LOCAL_RANK"} <= environ.keys():
        return None
    node = kubeflow.own_node(environ, wanted=wanted)
    if node is None and openmpi.RANK in environ:
        node = openmpi.own_node(environ) if wanted else None
    elif node is None:
        node = skypilot.own_node(environ) or (slurm.own_node(environ) if wanted else None)
    return node if node is not None and node.count > 1 else None


def _torchrun(environ: Mapping[str, str]) -> World:
    missing = [name for name in ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in environ]
    if missing:
        msg = (
            f"RANK and WORLD_SIZE are set, but not {', '.join(missing)}.\n"
            "Start the ranks with torchrun, srun or mpirun, or unset RANK and WORLD_SIZE: pretrain then starts its "
            "own. If they count nodes, pass --nnodes $WORLD_SIZE."
        )
        raise LaunchError(msg)
    # LOCAL_SIZE and CROSS_RANK are DeepSpeed's words (deepspeed/launcher/launch.py).
    rank = integer_variable(environ, "RANK")
    local_world_size = integer_variable(environ, "LOCAL_WORLD_SIZE", integer_variable(environ, "LOCAL_SIZE", 1))
    return World(
        rank=rank,
        world_size=integer_variable(environ, "WORLD_SIZE"),
        local_rank=integer_variable(environ, "LOCAL_RANK"),
        local_world_size=local_world_size,
        node_rank=integer_variable(
            environ, "GROUP_RANK", integer_variable(environ, "CROSS_RANK", rank // local_world_size)
        ),
        master_addr=environ["MASTER_ADDR"],
        master_port=port_variable(environ),
    )
