"""Default environment variables of a rank."""

from __future__ import annotations

from pretrain.cores import available_cores


def default_variables(local_world_size: int) -> dict[str, str]:
    """Return the values for variables that the user has not set: a share of the cores, warnings of libraries off."""
    return {
        "OMP_NUM_THREADS": str(max(1, available_cores() // local_world_size)),
        # After a rank has died, the other ranks warn about every lost connection.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
