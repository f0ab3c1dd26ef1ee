"""Connection to the store of the node that serves the rendezvous, which may not be there yet."""

from __future__ import annotations

import socket
import sys
import time
from datetime import timedelta

from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

from pretrain.errors import LaunchError

_TRY = 5.0
"""Seconds for one try."""
_PERIOD = 0.2


def connect(endpoint: tuple[str, int], timeout: timedelta) -> TCPStore:
    """Connect once.

    Args:
        endpoint: host and port.
        timeout: of the store's calls.

    Raises:
        DistError: nothing answers there, or no store.
    """
    # A socket of its own first: the store's constructor waits for its timeout, and is deaf to signals meanwhile.
    try:
        socket.create_connection(endpoint, timeout=_TRY).close()
    except OSError as error:
        raise DistError(str(error)) from error
    store = TCPStore(*endpoint, is_master=False, timeout=timedelta(seconds=_TRY), wait_for_workers=False)
    store.set_timeout(timeout)
    return store


def connect_within(endpoint: tuple[str, int], timeout: timedelta) -> TCPStore:
    """Connect as soon as the store is there.

    Raises:
        DistError: it did not come in time.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    while True:
        try:
            return connect(endpoint, timeout)
        except DistError as error:
            if time.monotonic() > deadline:
                msg = f"nothing has answered within {timeout}: {str(error).splitlines()[0]}"
                raise DistError(msg) from error
        time.sleep(_PERIOD)


def is_served_again(endpoint: tuple[str, int], timeout: timedelta, notice: str) -> bool:
    """Wait until a host can be reached that is cut off; return False if it never can, or nothing serves there any more.

    Args:
        endpoint: host and port.
        timeout: of the wait.
        notice: written once if there is something to wait for.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < deadline:
        try:
            socket.create_connection(endpoint, timeout=_TRY).close()
        except ConnectionRefusedError:
            return False
        except OSError:
            sys.stderr.write(notice)
            notice = ""
            time.sleep(_PERIOD)
        else:
            return True
    return False


def is_here(host: str) -> bool:
    """Say whether the host's address is one of this machine's, so that a socket can be bound to it.

    Raises:
        LaunchError: the host is not known here.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    except OSError as exc:
        msg = f"--rdzv: the host '{host}' is not known here ({exc.strerror})."
        raise LaunchError(msg) from exc
    with socket.socket(family, kind) as probe:
        try:
            probe.bind(address)
        except OSError:
            return False
    return True
