"""Default environment variables of a rank."""

from __future__ import annotations

import os

from pretrain.machine import available_cores

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
