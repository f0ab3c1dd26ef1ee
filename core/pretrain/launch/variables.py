"""The environment of a rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.cores import available_cores
from pretrain.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Mapping


def number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Return a variable as a non-negative number.

    Raises:
        LaunchError: it is not one, or is missing and has no default.
    """
    text = environ.get(name, "" if default is None else str(default))
    if not text.isdecimal():
        msg = (
            f"the environment variable {name} is '{text}'; a number was expected.\n"
            "Start the ranks with torchrun, srun or mpirun, or unset their variables: pretrain then starts its own."
        )
        raise LaunchError(msg)
    return int(text)


def usual(local_world_size: int) -> dict[str, str]:
    """Return what a rank should have where the user sets nothing: cores are shared, libraries speak up only in need."""
    return {
        "OMP_NUM_THREADS": str(max(1, available_cores() // local_world_size)),
        # When a rank dies, those of the others warn about every connection they lose.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
