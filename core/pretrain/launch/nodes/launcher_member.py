"""The launcher of a hostfile as a member of its nodes' rendezvous: it asks them to stop, and reads how they ended."""

from __future__ import annotations

import json
import math
import socket
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

from pretrain.launch.nodes.rendezvous import (
    ARRIVAL_TIMEOUT,
    FAILURE,
    GONE,
    LAUNCHER,
    READ,
    STOP,
    another_run,
    ended_key,
    is_of_run,
    taken_key,
)
from pretrain.launch.processes.failure import USER_ERROR, Failure

if TYPE_CHECKING:
    from collections.abc import Sequence

_PERIOD = 0.25
_TIMEOUT = timedelta(seconds=30)
_NAMES = 8
"""Hosts that an error names at most."""


class LauncherMember(threading.Thread):
    """Thread that talks to the nodes: a node that does not answer must not block the launcher's signal handling.

    Attributes:
        joined: the rendezvous is there, and the launcher has joined it.
        failure: why the run failed, as the nodes report it, or as the launcher finds; None so far.
        exit_codes: of all nodes, once all have ended; None before.
    """

    def __init__(self, endpoint: tuple[str, int], hosts: Sequence[str], run: str) -> None:
        """Describe the rendezvous of a node on each of `hosts`; `start` joins it as soon as it is there."""
        super().__init__(daemon=True, name="rendezvous")
        self.joined = False
        self.failure: Failure | None = None
        self.exit_codes: list[int] | None = None
        self._endpoint = endpoint
        self._address = ":".join(map(str, endpoint))
        self._hosts = hosts
        self._run = run
        self._ended_keys = [ended_key(node) for node in range(len(hosts))]
        self._request = ""
        self._request_sent = ""
        self._closed = threading.Event()

    def stop_nodes(self, number: int, times: int) -> None:
        """Ask every node to act as if it had received the signal `times` times."""
        self._request = json.dumps([int(number), times])

    def close(self) -> None:
        """Leave the rendezvous soon."""
        self._closed.set()

    def run(self) -> None:
        """Join, exchange requests for reports, and leave."""
        store = self._join()
        if store is None:
            return
        try:
            self._watch(store)
            self._exchange(store)
            store.add(GONE, 1)
        except DistError:
            if self.exit_codes is None and not self._closed.is_set():
                self.failure = self.failure or self._loss()

    def _watch(self, store: TCPStore) -> None:
        """Exchange requests for reports until all nodes have ended."""
        arrival = time.monotonic() + ARRIVAL_TIMEOUT.total_seconds()
        while self.exit_codes is None and not self._closed.is_set():
            self._exchange(store)
            if time.monotonic() > arrival:
                arrival = math.inf
                self.failure = self.failure or self._absence(store)
            self._closed.wait(_PERIOD)

    def _join(self) -> TCPStore | None:
        while not self._closed.is_set():
            # A connection of our own first: the store's waits for its timeout, whatever happens meanwhile.
            with suppress(OSError, DistError):
                socket.create_connection(self._endpoint, timeout=5).close()
                store = TCPStore(*self._endpoint, is_master=False, timeout=_TIMEOUT, wait_for_workers=False)
                if not is_of_run(store, self._run):
                    self.failure = _user_error(another_run(self._address))
                    return None
                store.set(LAUNCHER, "joined")
                self.joined = True
                return store
            self._closed.wait(_PERIOD)
        return None

    def _absence(self, store: TCPStore) -> Failure | None:
        """Return the failure that some nodes have not come; None if all have."""
        absent = [host for node, host in enumerate(self._hosts) if not store.check([taken_key(node)])]
        if not absent:
            return None
        more = f" and {len(absent) - _NAMES} more" if len(absent) > _NAMES else ""
        text = (
            f"--hostfile: no word of {', '.join(absent[:_NAMES])}{more} within {ARRIVAL_TIMEOUT.seconds} s.\n"
            "The output above may say why. Check that the launcher program reaches each of them and starts "
            f"{sys.executable} there, and that they reach {self._address}."
        )
        return _user_error(text)

    def _loss(self) -> Failure:
        text = (
            f"--hostfile: {self._hosts[0]}, which serves the rendezvous {self._address}, left it before the others.\n"
            "The node there was killed, or the host is down: look at the output above, and at the host."
        )
        return _user_error(text)

    def _exchange(self, store: TCPStore) -> None:
        if self._request != self._request_sent:
            self._request_sent = self._request
            store.set(STOP, self._request_sent)
        ended = store.check(self._ended_keys)
        if store.check([FAILURE]):
            self.failure = self.failure or Failure(**json.loads(store.get(FAILURE)))
            store.set(READ, "by the launcher")
        if ended and self.exit_codes is None:
            self.exit_codes = [int(store.get(key)) for key in self._ended_keys]


def _user_error(text: str) -> Failure:
    return Failure(rank=0, when=time.time(), exit_code=USER_ERROR, text=text)
