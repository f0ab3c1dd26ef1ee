"""How many cores this process may use."""

from __future__ import annotations

import os


def available_cores() -> int:
    """Return the cores that the process is bound to (a container's or a Slurm step's), or all where none is told."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
