"""Check that a host sees the run directory of rank 0, and no other folder of the same path."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

from pretrain.errors import RunError
from pretrain.launch.run_directory.lock import holder

if TYPE_CHECKING:
    from pathlib import Path

_TIMEOUT = 60.0
"""Seconds that a network file system gets to show what another host has written."""


def this_process() -> tuple[str, int]:
    """Return host and process id, as the lock of a run directory has them."""
    return socket.gethostname(), os.getpid()


def require_shared(run_dir: Path, first: tuple[str, int]) -> None:
    """Check that the lock of the directory is that of rank 0; not to be called by rank 0.

    Args:
        run_dir: the run directory, held by rank 0.
        first: `this_process` of rank 0.

    Raises:
        RunError: there is no such directory on this host, or one that another process holds.
    """
    deadline = time.monotonic() + _TIMEOUT
    while not _is_held_by(run_dir, first):
        if time.monotonic() > deadline:
            msg = (
                f"{socket.gethostname()} does not see the run directory {run_dir} that rank 0 uses on {first[0]}.\n"
                "All hosts must share it: pass --run-dir with a folder of a file system that all of them see."
            )
            raise RunError(msg)
        time.sleep(1)


def _is_held_by(run_dir: Path, first: tuple[str, int]) -> bool:
    """Say whether rank 0 holds the directory, or was the last to hold it."""
    return holder(run_dir) == first
