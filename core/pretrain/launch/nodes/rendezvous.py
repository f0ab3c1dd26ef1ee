"""Several nodes that start their own ranks: they meet, count their ranks, and tell each other of a failure."""

from __future__ import annotations

import json
import socket
import time
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING

from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

from pretrain.errors import LaunchError
from pretrain.launch.processes.failure import Failure
from pretrain.launch.world import free_port, node_worlds

if TYPE_CHECKING:
    from pretrain.launch.nodes.nodes import Nodes
    from pretrain.launch.world import World

_ARRIVAL = timedelta(minutes=15)
_CONSEQUENCE = 5.0
_FAREWELL = 30.0
"""Seconds that the node which serves the meeting waits for the others when it has finished."""


class Meeting:
    """This node's seat among the nodes of a run."""

    def __init__(self, nodes: Nodes) -> None:
        """Join, waiting for the node that serves the meeting.

        Raises:
            LaunchError: it does not come, a node number is taken twice, or there are more nodes than said.
        """
        self._nodes = nodes
        self._host, port = nodes.endpoint()
        self._serves = nodes.rank == 0 if nodes.rank is not None else _is_here(self._host)
        try:
            self._store = self._open(port)
        except DistError as exc:
            msg = f"--rdzv {nodes.rendezvous}: no meeting with the other nodes ({str(exc).splitlines()[0]})."
            raise LaunchError(msg) from exc
        self._rank = nodes.rank if nodes.rank is not None else 0 if self._serves else self._store.add("arrived", 1)
        if self._rank >= nodes.count or self._store.add(f"taken/{self._rank}", 1) > 1:
            msg = (
                f"--rdzv {nodes.rendezvous}: node {self._rank} of {nodes.count} is there already.\n"
                "Each node gives the same --nnodes, and its own --node-rank or none; or another run has this port."
            )
            raise LaunchError(msg)

    def worlds(self, local_world_size: int) -> list[World]:
        """Return the places of this node's ranks; nodes may have different numbers of them.

        Raises:
            LaunchError: a node did not come within 15 minutes.
        """
        self._store.set(f"ranks/{self._rank}", str(local_world_size))
        if self._rank == 0:
            self._store.set("port", str(free_port()))
        keys = [f"ranks/{node}" for node in range(self._nodes.count)]
        try:
            self._store.wait([*keys, "port"], _ARRIVAL)
        except DistError as exc:
            msg = f"--rdzv {self._nodes.rendezvous}: not all {self._nodes.count} nodes have come within {_ARRIVAL}."
            raise LaunchError(msg) from exc
        sizes = [int(self._store.get(key)) for key in keys]
        return node_worlds(sizes, self._rank, self._host, int(self._store.get("port")))

    def settle(self, failure: Failure) -> Failure:
        """Return why the run failed, given why the ranks of this node did, and let the other nodes know.

        Ranks that only lost a peer wait a moment for the node that knows more.
        """
        deadline = time.monotonic() + _CONSEQUENCE
        while failure.lost_peer and time.monotonic() < deadline:
            if told := self.heard():
                return told
            time.sleep(0.1)
        with suppress(DistError):
            self._store.compare_set("failure", "", json.dumps(asdict(failure)))
        return failure

    def heard(self) -> Failure | None:
        """Return the failure that a node has told, or None."""
        try:
            return Failure(**json.loads(self._store.get("failure"))) if self._store.check(["failure"]) else None
        except DistError:  # The serving node has left: its ranks are gone, and those here will say so.
            return None

    def leave(self) -> None:
        """Go; the serving node waits until the others have gone, so that they can hear why."""
        with suppress(DistError):
            gone = self._store.add("gone", 1)
            deadline = time.monotonic() + _FAREWELL
            while self._serves and gone < self._nodes.count and time.monotonic() < deadline:
                time.sleep(0.1)
                gone = self._store.add("gone", 0)

    def _open(self, port: int) -> TCPStore:
        if self._serves:
            try:
                return TCPStore(self._host, port, is_master=True, timeout=_ARRIVAL, wait_for_workers=False)
            except DistError:
                # Two nodes on one machine: the other one came first.
                if self._nodes.rank is not None:
                    raise
                self._serves = False
        return TCPStore(self._host, port, is_master=False, timeout=_ARRIVAL, wait_for_workers=False)


def _is_here(host: str) -> bool:
    """Say whether the host's address is one of this machine's: only then can a socket be bound to it."""
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
