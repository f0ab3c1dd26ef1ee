"""Counts of this process's TCP sockets by the kernel: their number, and what has gone through a store's server."""

from __future__ import annotations

import os
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path

_INFO, _SIZE = struct.Struct("=QQ16xII"), 256
"""Of linux/tcp.h's tcp_info from byte 120 on: bytes acknowledged and received; at 152 segments of data in, and out."""
_AT = 120


def counts(port: int) -> dict[str, int]:
    """Return bytes and requests that a store served here at `port` has had of its clients, and other TCP sockets.

    A client sends a request of up to 64 KB as one segment of the loopback device and waits for the answer, so segments
    with data are requests. Connections that have ended are not counted any more.
    """
    found = {"bytes": 0, "requests": 0, "sockets": 0}
    for descriptor in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
        with suppress(OSError):  # closed meanwhile, or no TCP socket
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as each:
                info = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
                if each.getsockname()[1] != port:
                    found["sockets"] += 1
                    continue
                sent, received, requests, _ = _INFO.unpack_from(info, _AT)
                found["bytes"] += sent + received
                found["requests"] += requests
    return found
