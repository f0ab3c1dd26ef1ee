"""Identity of this machine, and the CPU cores that this process may use."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path


def machine() -> str:
    """Return an identity of this machine and its current boot; containers share that of their host."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname()


def available_cores() -> int:
    """Return the number of cores that the process is bound to (by a container or a Slurm step), or of all cores."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
