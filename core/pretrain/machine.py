"""Identity of this machine."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path


def machine() -> str:
    """Return an identity of this machine and its current boot; containers share that of their host."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname()
