"""Identity of this machine, the CPU cores that this process may use, and its environment set for a while."""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


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


@contextmanager
def restored_variables(*names: str) -> Iterator[None]:
    """Give these environment variables, also unset ones, their values back at the end of a block."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
