"""Ranks started by Open MPI's mpirun."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from pretrain.errors import LaunchError
from pretrain.launch.schedulers.integer_variable import integer_variable, port_variable
from pretrain.launch.schedulers.own_node import OwnNode
from pretrain.launch.world import LOCALHOST, World, port_of

if TYPE_CHECKING:
    from collections.abc import Mapping

RANK = "OMPI_COMM_WORLD_RANK"
"""Variable that each process of mpirun has."""


def current_world(environ: Mapping[str, str]) -> World | None:
    """Return this process's place if mpirun started it with others, else None.

    mpirun does not pass the address of rank 0: MASTER_ADDR is required unless all ranks are on one host.

    Raises:
        LaunchError: MASTER_ADDR is missing, or a variable cannot be read.
    """
    if not _is_one_of_several(environ):
        return None
    rank, world_size = (
        integer_variable(environ, RANK),
        integer_variable(environ, "OMPI_COMM_WORLD_SIZE"),
    )
    local_world_size = integer_variable(environ, "OMPI_COMM_WORLD_LOCAL_SIZE")
    master_addr = environ.get("MASTER_ADDR") or (LOCALHOST if local_world_size == world_size else "")
    if not master_addr:
        msg = (
            "mpirun started this rank on one of several hosts, but MASTER_ADDR is not set.\n"
            "Name the host of rank 0: mpirun -x MASTER_ADDR=HOST, or let pretrain call mpirun: --hostfile FILE "
            "--launcher openmpi"
        )
        raise LaunchError(msg)
    return World(
        rank=rank,
        world_size=world_size,
        local_rank=integer_variable(environ, "OMPI_COMM_WORLD_LOCAL_RANK"),
        local_world_size=local_world_size,
        node_rank=rank // local_world_size,  # OMPI_COMM_WORLD_NODE_RANK is the rank within the node
        master_addr=master_addr,
        master_port=_port(environ),
    )


def own_node(environ: Mapping[str, str]) -> OwnNode | None:
    """Return the node of this process if mpirun started one on each of several nodes, else None.

    Raises:
        LaunchError: a variable cannot be read.
    """
    if not _is_one_of_several(environ) or integer_variable(environ, "OMPI_COMM_WORLD_LOCAL_SIZE") > 1:
        return None
    host = environ.get("MASTER_ADDR")
    return OwnNode(
        by="mpirun",
        count=integer_variable(environ, "OMPI_COMM_WORLD_SIZE"),
        rank=integer_variable(environ, RANK),
        rendezvous=f"{host}:{_port(environ)}" if host else None,
    )


def _is_one_of_several(environ: Mapping[str, str]) -> bool:
    return RANK in environ and integer_variable(environ, "OMPI_COMM_WORLD_SIZE") > 1


def _port(environ: Mapping[str, str]) -> int:
    # The name of the job differs between jobs and is the same on all hosts.
    return port_variable(environ, port_of(zlib.crc32(environ.get("PMIX_NAMESPACE", "").encode())))
