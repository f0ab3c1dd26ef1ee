"""Rendezvous of nodes that start their own ranks: they count ranks and report failures over a TCP store."""

from __future__ import annotations

import json
import signal
import socket
import time
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING

from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

from pretrain.errors import LaunchError
from pretrain.launch.nodes.bounded_store import BoundedStore, StoreSilenceError
from pretrain.launch.processes.failure import Failure
from pretrain.launch.world import free_port, node_worlds
from pretrain.machine import machine

if TYPE_CHECKING:
    from pretrain.launch.nodes.nodes import Nodes
    from pretrain.launch.world import World

RUN, LAUNCHER, STOP, FAILURE, READ, GONE = "run", "launcher", "stop", "failure", "read", "gone"
REPORTS = "reports"
"""Keys of the store: the run's identity; the launcher of a hostfile has joined; its stop request; the first failure;
the launcher has read it; how many have left; how many times SIGUSR1 has asked for a report of all ranks."""

ARRIVAL_TIMEOUT = timedelta(minutes=5)
"""Timeout of the rendezvous for the nodes of a hostfile, which are started together; the first import of torch from a
network file system may take minutes."""
_TIMEOUT = timedelta(minutes=15)
_BY_HAND = "by hand:"  # then the options in which all nodes must agree
_LAUNCHER_TIMEOUT = timedelta(minutes=1)
_PERIOD = 0.2
_CAUSE_TIMEOUT = 5.0
"""Seconds that a node whose ranks only lost a peer waits for the failure of that peer's node."""
_READ_TIMEOUT = timedelta(seconds=10)
_LEAVE_TIMEOUT = 30.0
"""Seconds that the node which serves the store waits for the others when it has finished."""


class Rendezvous:
    """Member of the rendezvous: one node."""

    def __init__(self, nodes: Nodes, max_restarts: int = 0) -> None:
        """Join, waiting for the node that serves the store.

        Args:
            nodes: of the run.
            max_restarts: of the run; the same on all nodes.

        Raises:
            LaunchError: it does not come, or serves another run; a node number is taken twice; there are more
                nodes than said; or the nodes of one run were given different commands.
        """
        self._nodes = nodes
        self._members = nodes.count
        self._rank = -1
        self._report_wanted = False
        self._host, port = nodes.endpoint()
        self._serves = nodes.rank == 0 if nodes.rank is not None else _is_here(self._host)
        self._signals_passed_on = 0
        try:
            store = self._open(port, ARRIVAL_TIMEOUT if nodes.of_hostfile else _TIMEOUT)
            own = nodes.run or f"{_BY_HAND} --nnodes {nodes.count} --max-restarts {max_restarts}"
            if self._serves:
                store.set(RUN, own)
            theirs = store.get(RUN).decode()
        except DistError as exc:
            msg = f"--rdzv {nodes.rendezvous}: no rendezvous with the other nodes ({str(exc).splitlines()[0]})."
            raise LaunchError(msg) from exc
        if theirs != own:
            raise LaunchError(_difference(str(nodes.rendezvous), theirs, own))
        self._store = self._of_attempt = BoundedStore(store)
        self._reports_passed_on = self._store.add(REPORTS, 0)
        self._take_place()

    def wait_for_launcher(self) -> None:
        """Wait for the launcher of the hostfile.

        Raises:
            LaunchError: it did not join within a minute: it has ended, or cannot reach the rendezvous.
        """
        msg = (
            f"--hostfile: the launcher did not join the rendezvous {self._nodes.rendezvous} within "
            f"{_LAUNCHER_TIMEOUT.seconds} s: it has ended, or cannot reach it.\n"
            "Set MASTER_ADDR (and MASTER_PORT) to an address of the first host that the launcher and all hosts reach."
        )
        self._wait([LAUNCHER], _LAUNCHER_TIMEOUT, msg)

    def require_own_machine(self) -> None:
        """Check that no other node of the hostfile is on this machine: both would take its devices from 0 on.

        Raises:
            LaunchError: the hostfile has two names of it.
        """
        here = f"machine/{machine()} {socket.gethostname()}"
        other = int(self._store.compare_set(here, "", str(self._rank)))
        if other != self._rank:
            first, second = sorted([other + 1, self._rank + 1])
            msg = (
                f"hosts {first} and {second} of the hostfile are one machine, {socket.gethostname()}: "
                "their ranks would share its devices.\nGive it one line with all its ranks."
            )
            raise LaunchError(msg)

    def worlds(self, local_world_size: int) -> list[World]:
        """Return the places of this node's ranks; nodes may have different numbers of them.

        Raises:
            LaunchError: a node did not come within 15 minutes, or failed before it came.
        """
        self._store.set(f"ranks/{self._rank}", str(local_world_size))
        if self._rank == 0:
            self._store.set("port", str(free_port()))
        keys = [f"ranks/{node}" for node in range(self._nodes.count)]
        msg = f"--rdzv {self._nodes.rendezvous}: not all {self._nodes.count} nodes have come within {_TIMEOUT}."
        self._wait([*keys, "port"], _TIMEOUT, msg)
        sizes = [int(self._store.get(key)) for key in keys]
        return node_worlds(sizes, self._rank, self._host, int(self._store.get("port")))

    def ask_for_report(self) -> None:
        """Have the ranks of all nodes get SIGUSR1, those here too, with the next calls of `report_is_asked_for`."""
        self._report_wanted = True

    def report_is_asked_for(self) -> bool:
        """Say whether some node has asked for a report since the last call."""
        try:
            if self._report_wanted:
                self._report_wanted = False
                self._store.add(REPORTS, 1)
            asked = self._store.add(REPORTS, 0)
        except DistError:
            return False
        is_new, self._reports_passed_on = asked > self._reports_passed_on, asked
        return is_new

    def report(self, failure: Failure) -> Failure:
        """Report the failure of this node's ranks; return the failure of the run.

        Ranks that only lost a peer wait a moment for the report of that peer's node.
        """
        deadline = time.monotonic() + _CAUSE_TIMEOUT
        while failure.lost_peer and time.monotonic() < deadline:
            if reported := self.poll():
                return reported
            time.sleep(0.1)
        with suppress(DistError):
            self._of_attempt.compare_set(FAILURE, "", json.dumps(asdict(failure)))
        return failure

    def launcher_has_read(self) -> bool:
        """Wait until the launcher of the hostfile has read the failure; return False if it does not: it has ended."""
        with suppress(DistError):
            self._store.wait([READ], _READ_TIMEOUT)
            return True
        return False

    def poll(self) -> Failure | None:
        """Return the failure that a node has reported, or None.

        A stop request of the hostfile's launcher becomes that signal in this process.
        """
        try:
            self._pass_on_stop()
            return self._reported()
        except DistError:  # The serving node has left: its ranks are gone, and those here will say so.
            return None

    def leave(self, exit_code: int = 0) -> None:
        """Leave; the serving node waits until the others have left, so that they can read every report.

        Args:
            exit_code: of this node, for the launcher of a hostfile.
        """
        with suppress(DistError):
            self._store.set(ended_key(self._rank), str(exit_code))
            gone = self._store.add(GONE, 1)
            members = self._members + self._nodes.of_hostfile
            deadline = time.monotonic() + _LEAVE_TIMEOUT
            while self._serves and gone < members and time.monotonic() < deadline:
                time.sleep(0.1)
                gone = self._store.add(GONE, 0)

    def _take_place(self) -> None:
        nodes = self._nodes
        self._rank = nodes.rank if nodes.rank is not None else 0 if self._serves else self._store.add("arrived", 1)
        self._require_vacant(self._rank)

    def _require_vacant(self, rank: int) -> None:
        nodes = self._nodes
        if rank >= nodes.count or self._store.add(taken_key(rank), 1) > 1:
            msg = (
                f"--rdzv {nodes.rendezvous}: node {rank} of {nodes.count} is there already.\n"
                "Each node gives the same --nnodes, and its own --node-rank or none; or another run has this port."
            )
            raise LaunchError(msg)

    def _reported(self) -> Failure | None:
        """Return the failure that a node has reported, or None.

        Raises:
            DistError: the serving node has left.
        """
        store = self._of_attempt
        return Failure(**json.loads(store.get(FAILURE))) if store.check([FAILURE]) else None

    def _open(self, port: int, timeout: timedelta) -> TCPStore:
        if self._serves:
            try:
                return TCPStore(self._host, port, is_master=True, timeout=timeout, wait_for_workers=False)
            except DistError:
                # Two nodes on one machine: the other one came first.
                if self._nodes.rank is not None:
                    raise
                self._serves = False
        return TCPStore(self._host, port, is_master=False, timeout=timeout, wait_for_workers=False)

    def _wait(self, keys: list[str], timeout: timedelta, msg: str) -> None:
        """Wait for keys; raise LaunchError after the timeout, or with the failure that another node reports."""
        deadline = time.monotonic() + timeout.total_seconds()
        try:
            while not self._are_there(keys):
                if reported := self.poll():
                    raise LaunchError(str(reported))
                if time.monotonic() > deadline:
                    raise LaunchError(msg)
                time.sleep(_PERIOD)
        except DistError as exc:
            raise LaunchError(msg) from exc

    def _are_there(self, keys: list[str]) -> bool:
        with suppress(StoreSilenceError):  # the deadline counts
            return self._store.check(keys)
        return False

    def _pass_on_stop(self) -> None:
        if not self._nodes.of_hostfile or not self._store.check([STOP]):
            return
        number, times = json.loads(self._store.get(STOP))
        while self._signals_passed_on < times:
            self._signals_passed_on += 1
            signal.raise_signal(number)


def is_of_run(store: TCPStore, run: str) -> bool:
    """Say whether the store is that of the run, for which the serving node must have said which it is.

    Raises:
        DistError: it did not within the store's timeout.
    """
    return bool(store.get(RUN).decode() == run)


def another_run(endpoint: str) -> str:
    """Return the error of a rendezvous at which another run meets."""
    return (
        f"--rdzv {endpoint}: another run meets there.\n"
        "Wait for its end, or give this one another port: --rdzv HOST:PORT, or MASTER_PORT with --hostfile."
    )


def taken_key(node: int) -> str:
    """Return the key that says that a node has come."""
    return f"taken/{node}"


def ended_key(node: int) -> str:
    """Return the key of a node's exit code."""
    return f"ended/{node}"


def _difference(endpoint: str, theirs: str, own: str) -> str:
    """Return the error of a node that node 0 does not expect; both say which run they are of."""
    if not theirs.startswith(_BY_HAND) or not own.startswith(_BY_HAND):
        return another_run(endpoint)
    return (
        f"--rdzv {endpoint}: node 0 was started with{theirs.removeprefix(_BY_HAND)}, this one "
        f"with{own.removeprefix(_BY_HAND)}.\nGive the same command on every node; or another run meets there."
    )


def _is_here(host: str) -> bool:
    """Say whether the host's address is one of this machine's, so that a socket can be bound to it."""
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
