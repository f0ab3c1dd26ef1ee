"""Number of CPU cores that this process may use."""

from __future__ import annotations

import os


def available_cores() -> int:
    """Return the number of cores that the process is bound to (by a container or a Slurm step), or of all cores."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
