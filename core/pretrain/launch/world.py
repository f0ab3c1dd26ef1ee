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

_PORTS = range(10_000, 30_000)
"""Below the ports that Linux gives to outgoing connections (from 32768)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """Place of a process among all processes of a run.

    Attributes:
        rank: of all ranks.
        world_size: number of ranks.
        local_rank: within its node; which of the node's devices it takes.
        local_world_size: ranks of its node.
        node_rank: of all nodes.
        master_addr: where rank 0 can be reached.
        master_port: free on that host, or already served by the launcher's own store (torchrun).
        tell_launcher: takes the reason for which this process is about to end by itself, and whether it is the cause
            rather than a consequence; None where no launcher of ours shows it.
        tell_error: takes the error with which this process will end once a checkpoint is written; None as before.
        place_file: in which the launcher looks for the last place of a rank that has died; None without one of ours.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    master_addr: str
    master_port: int
    tell_launcher: Callable[[str, bool], None] | None = field(default=None, compare=False, repr=False)
    tell_error: Callable[[Exception], None] | None = field(default=None, compare=False, repr=False)
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
    before = sum(sizes[:node])
    return [
        World(
            rank=before + local_rank,
            world_size=sum(sizes),
            local_rank=local_rank,
            local_world_size=sizes[node],
            node_rank=node,
            master_addr=host,
            master_port=port,
        )
        for local_rank in range(sizes[node])
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


_QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
"""After a rank has died, others warn about every lost connection, each time with a trace of C++."""


def default_variables(local_world_size: int) -> dict[str, str]:
    """Return the values for variables that the user has not set: a share of the cores, warnings of libraries off."""
    return {
        "OMP_NUM_THREADS": str(max(1, available_cores() // local_world_size)),
        **_QUIET,
    }


def warn_of_no_lost_connection() -> None:
    """Turn the warnings off in this process too, a launcher that will import torch; what the user has set stays."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
