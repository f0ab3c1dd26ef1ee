"""Place of a rank among all ranks of a run."""

from __future__ import annotations

import os
import random
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pretrain.machine import available_cores

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


LOCALHOST = "127.0.0.1"

_PORTS = range(10_000, 30_000)  # below the ports that Linux gives to outgoing connections (from 32768)


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """Place of a process among all processes of a run."""

    rank: int
    world_size: int
    local_rank: int  # within its node; which of the node's devices it takes
    local_world_size: int
    node_rank: int
    master_addr: str  # where rank 0 can be reached
    master_port: int  # free on that host, or served already by the launcher's store (torchrun)
    # Takes why this process is about to end by itself, and whether it is the cause; None without a launcher of ours.
    tell_launcher: Callable[[str, bool], None] | None = field(default=None, compare=False, repr=False)
    # Takes the error with which this process ends once a checkpoint is written; None as before.
    tell_error: Callable[[Exception], None] | None = field(default=None, compare=False, repr=False)
    # In which the launcher looks for the last place of a rank that has died; None as before.
    place_file: Path | None = field(default=None, compare=False, repr=False)

    def environment(self) -> dict[str, str]:
        """Return the variables that torchrun would set, which `init_method="env://"` and other libraries read."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "GROUP_RANK": str(self.node_rank),
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": str(self.master_port),
        }


def node_worlds(sizes: list[int], node: int, host: str, port: int) -> list[World]:
    """Return the places of one node's ranks, given every node's number of ranks."""
    part = NodePart(node=node, ranks=sizes[node], before=sum(sizes[:node]), world_size=sum(sizes))
    return part.worlds(host, port)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePart:
    """Part of a run that one node has; plain values."""

    node: int  # its rank
    ranks: int  # its own
    before: int  # ranks of the nodes before it
    world_size: int  # ranks of all nodes

    def worlds(self, host: str, port: int) -> list[World]:
        """Return the places of its ranks; `host` has rank 0."""
        return [
            World(
                rank=self.before + local_rank,
                world_size=self.world_size,
                local_rank=local_rank,
                local_world_size=self.ranks,
                node_rank=self.node,
                master_addr=host,
                master_port=port,
            )
            for local_rank in range(self.ranks)
        ]


def free_port() -> int:
    """Return a TCP port that is free now, outside the system's ephemeral range."""
    numbers = random.SystemRandom()  # the seed of `random` may be the same in many processes
    while True:
        port = numbers.choice(_PORTS)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe, suppress(OSError):
            probe.bind((LOCALHOST, port))
            return port


def port_of(job: int) -> int:
    """Return a port derived from a job's number: the same on all hosts, different for most jobs."""
    return _PORTS[job % len(_PORTS)]


_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"
"""After a rank has died, others warn about every lost connection, each time with a trace of C++."""


def default_variables(local_world_size: int) -> dict[str, str]:
    """Return the values for variables that the user has not set: a share of the cores, warnings of libraries off."""
    return {"OMP_NUM_THREADS": str(max(1, available_cores() // local_world_size)), _LOG_LEVEL: "ERROR"}


def warn_of_no_lost_connection() -> None:
    """Turn the warnings off in this process too, a launcher that will import torch; what the user has set stays."""
    os.environ.setdefault(_LOG_LEVEL, "ERROR")
