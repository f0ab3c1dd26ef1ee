"""Environment variables of schedulers, and the node that they describe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnNode:
    """The node on which this process starts the ranks, one of several."""

    by: str  # whose variables say it
    count: int
    rank: int
    rendezvous: str | None  # "HOST:PORT" on node 0; None where the variables do not tell
    nproc: int | None = None  # ranks of a node; None as above


def integer_variable(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Return a variable as a non-negative integer; one that is missing must have a default."""
    text = environ.get(name, "" if default is None else str(default))
    if not text.isdecimal():
        msg = (
            f"the environment variable {name} is '{text}'; a number was expected.\n"
            "Start the ranks with torchrun, srun or mpirun, or unset their variables: pretrain then starts its own."
        )
        raise LaunchError(msg)
    return int(text)


def port_variable(environ: Mapping[str, str], default: int | None = None, name: str = "MASTER_PORT") -> int:
    """Return a port, or the default, which need not be one."""
    if name not in environ and default is not None:
        return default
    port = integer_variable(environ, name)
    if not 0 < port < 65536:
        msg = f"the environment variable {name} is {port}; a port is from 1 to 65535.\nSet another, or unset it."
        raise LaunchError(msg)
    return port
