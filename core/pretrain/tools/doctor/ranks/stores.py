"""The stores that ranks write to while they are examined."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:
    from pretrain.launch.world import World

_CONNECT = timedelta(minutes=15)
"""The board counts the seconds of silence itself; the thread that connects may wait longer than that."""


def open_first(world: World, *, serves: bool) -> Any:
    """Return a connection to the store at the rendezvous of the ranks.

    Args:
        world: this rank's place.
        serves: whether the store is made here unless another program already serves it: rank 0's first connection.
    """
    if world.world_size == 1:
        return dist.HashStore()  # type: ignore[attr-defined]  # torch's stub lacks it
    by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = _client_or_server(world.master_addr, world.master_port, serves=serves and not by_agent)
    # torchrun restarts ranks with the same store, which still holds what the ranks before them wrote.
    return prefixed(f"doctor {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def open_second(address: str) -> Any:
    """Return a connection to the store that another rank serves at "host port"."""
    host, port = address.split()
    return _client_or_server(host, int(port), serves=False)


def serve_second(world: World) -> tuple[Any, str]:
    """Serve a store on a free port; return it and its address as "host port"."""
    store = _client_or_server("localhost", 0, serves=True)
    return store, f"{_own_address(world)} {store.port}"


def prefixed(prefix: str, store: Any) -> Any:
    """Return the store with a prefix to all of its keys."""
    return dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]


def _client_or_server(host: str, port: int, *, serves: bool) -> Any:
    return dist.TCPStore(host, port, is_master=serves, timeout=_CONNECT, wait_for_workers=False)  # type: ignore[attr-defined]


def _own_address(world: World) -> str:
    """Return the address of this host on the way to rank 0, by which the other hosts reach it too."""
    family, kind, _, _, address = socket.getaddrinfo(world.master_addr, world.master_port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # of a datagram: nothing is sent
        return str(probe.getsockname()[0])
