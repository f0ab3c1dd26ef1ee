"""Rendezvous of nodes that start their own ranks: they count ranks and report failures over a TCP store."""

from __future__ import annotations

import dataclasses
import json
import signal
import socket
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

from pretrain.errors import LaunchError
from pretrain.exit_codes import WELL, of_signal
from pretrain.launch.nodes import store_keys
from pretrain.launch.nodes.bounded_store import BoundedStore, StoreSilenceError
from pretrain.launch.nodes.connection import connect_within, is_here
from pretrain.launch.nodes.run_identity import RUN, require_same, run_identity
from pretrain.launch.processes.failure import CRASH, Failure, root_cause
from pretrain.launch.world import free_port, node_worlds
from pretrain.machine import machine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.launch.nodes.nodes import Nodes
    from pretrain.launch.world import World

ARRIVAL_TIMEOUT = timedelta(minutes=5)
"""Timeout of the rendezvous for the nodes of a hostfile, which are started together; the first import of torch from a
network file system may take minutes."""
_TIMEOUT = timedelta(minutes=15)
_LAUNCHER_TIMEOUT = timedelta(minutes=1)
_PERIOD = 0.2
_CAUSE_TIMEOUT = 5.0
"""Seconds that a node whose ranks only lost a peer waits for the failure of that peer's node."""
_READ_TIMEOUT = timedelta(seconds=10)
LOSS_AFTER = 30.0
"""Seconds that ranks get to end by themselves when the node that serves the store is gone, and that this node gets to
answer again."""
LINGERING = 45.0
"""Seconds after which a node that serves has left, also where it has to notice that all others are lost."""
_LEAVE_TIMEOUT = 30.0
"""Seconds that the node which serves the store waits for the others when it has finished."""


class Rendezvous:
    """Member of the rendezvous: one node. `asked_to_stop`: its ranks have been asked to save and end."""

    def __init__(self, nodes: Nodes, max_restarts: int = 0, fewest_nodes: int | None = None) -> None:
        """Join, waiting for the node that serves the store.

        Args:
            nodes: of the run.
            max_restarts: of the run; the same on all nodes.
            fewest_nodes: of --allow-fewer-nodes; the same on all nodes.

        Raises:
            LaunchError: it does not come, or serves another run; a node number is taken twice; there are more
                nodes than said; or the nodes of one run were given different commands.
        """
        self._nodes = nodes
        self._members = nodes.count
        self._rank = -1
        self._report_wanted = False
        self._host, port = nodes.endpoint()
        self._serves = nodes.rank == 0 if nodes.rank is not None else is_here(self._host)
        self.asked_to_stop = False
        self._lost: float | None = None
        self._over = False
        own = run_identity(nodes, max_restarts, fewest_nodes)
        try:
            self._store = self._attempt_store = BoundedStore(self._open(port))
            with self._store.patient(LOSS_AFTER):  # a thousand nodes may join at once
                require_same(nodes.rendezvous, self._run_of_store(own), own)
                self._reports_passed_on = self._store.add(store_keys.REPORTS, 0)
                self._take_place()
        except DistError as exc:
            msg = f"--rdzv {nodes.rendezvous}: no rendezvous with the other nodes ({str(exc).splitlines()[0]})."
            raise LaunchError(msg) from exc

    @property
    def rank(self) -> int:
        """Number of this node; -1 before it has one."""
        return self._rank

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
        self._wait([store_keys.LAUNCHER], _LAUNCHER_TIMEOUT, msg)

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
                self._store.add(store_keys.REPORTS, 1)
            asked = self._store.add(store_keys.REPORTS, 0)
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
            reported = self.poll()
            if reported and not reported.lost_peer:
                return reported
            with suppress(DistError):
                if told := self._failure_of(store_keys.TOLD):
                    failure = dataclasses.replace(told, asked=failure.asked)
                    break
            time.sleep(0.1)
        with suppress(DistError):
            return self._kept(failure)
        return failure

    def report_stop(self, stop: Failure) -> Failure:
        """Let all nodes know why the ranks have stopped; return it. A node that was asked to has the last word."""
        text = json.dumps(dataclasses.asdict(stop))
        with suppress(DistError):
            if stop.asked:  # then no launcher starts the ranks again
                self._attempt_store.set(store_keys.STOPPED, text)
            else:
                self._attempt_store.compare_set(store_keys.STOPPED, "", text)
        return stop

    def tell(self, failures: Sequence[Failure]) -> None:
        """Let all nodes know what ranks here have told that still write a checkpoint; it ends nothing yet."""
        causes = [failure for failure in failures if not failure.lost_peer]
        if causes:
            with suppress(DistError):
                self._attempt_store.compare_set(store_keys.TOLD, "", json.dumps(dataclasses.asdict(root_cause(causes))))

    def _kept(self, own: Failure) -> Failure:
        """Return the failure that was reported before; this node's replaces it if it says more about the end.

        A node that was asked to end has the last word; and a cause says more than its consequence.

        Raises:
            DistError: the serving node has left.
        """
        text = json.dumps(dataclasses.asdict(own))
        kept = self._attempt_store.compare_set(store_keys.FAILURE, "", text).decode()
        first = Failure(**json.loads(kept))
        if (own.asked, not own.lost_peer) <= (first.asked, not first.lost_peer):
            return first
        self._attempt_store.compare_set(store_keys.FAILURE, kept, text)
        return own

    def launcher_has_read(self) -> bool:
        """Wait until the launcher of the hostfile has read the failure; return False if it does not: it has ended."""
        with suppress(DistError):
            self._store.wait([store_keys.READ], _READ_TIMEOUT)
            return True
        return False

    def poll(self) -> Failure | None:
        """Return the failure that a node has reported, or the loss of the serving node; None if there is none.

        A stop request of the hostfile's launcher becomes that signal in this process.

        Raises:
            SystemExit: that launcher asks for the end at once.
        """
        try:
            failure = self._hear()
        except DistError:
            self._lost = self._lost or time.monotonic()
            is_lost = time.monotonic() - self._lost > LOSS_AFTER and not self._over
            return self._loss() if is_lost else None
        self._lost = None
        return failure

    def _hear(self) -> Failure | None:
        """Return the failure that a node has reported, or None.

        Raises:
            DistError: the serving node has left, or is silent.
        """
        if self._nodes.of_hostfile:
            self._pass_on_stop()
            ended = store_keys.ended_key(0)
            # The serving node need not stay until the last rank here has ended.
            self._over = self._over or (self._store.check([ended]) and int(self._store.get(ended)) in WELL)
        return self._reported()

    def _loss(self) -> Failure | None:
        """Return the loss of the serving node; None if its ranks, which are gone with it, are reason enough."""
        if not self._nodes.of_hostfile:
            return None
        text = (
            f"--rdzv {self._nodes.rendezvous}: the first host, which serves the rendezvous, cannot be reached any "
            f"more from {socket.gethostname()}."
        )
        return Failure(rank=0, when=time.time(), exit_code=CRASH, text=text, of_launcher=True)

    def leave(self, exit_code: int = 0) -> None:
        """Leave; the serving node waits until the others have left, so that they can read every report.

        Args:
            exit_code: of this node, for the launcher of a hostfile.
        """
        with suppress(DistError):
            self._store.set(store_keys.ended_key(self._rank), str(exit_code))
            gone = self._store.add(store_keys.GONE, 1)
            members = self._members + self._nodes.of_hostfile
            deadline = time.monotonic() + _LEAVE_TIMEOUT
            while self._serves and gone < members and time.monotonic() < deadline:
                time.sleep(0.1)
                gone = self._store.add(store_keys.GONE, 0)

    def _take_place(self) -> None:
        nodes = self._nodes
        self._rank = nodes.rank if nodes.rank is not None else 0 if self._serves else self._store.add("arrived", 1)
        self._require_vacant(self._rank)

    def _require_vacant(self, rank: int) -> None:
        nodes = self._nodes
        if rank >= nodes.count or self._store.add(store_keys.taken_key(rank), 1) > 1:
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
        return self._failure_of(store_keys.FAILURE)

    def _failure_of(self, key: str) -> Failure | None:
        store = self._attempt_store
        return Failure(**json.loads(store.get(key))) if store.check([key]) else None

    def _run_of_store(self, own: str) -> str:
        """Return which run the store is of, once the serving node has said it.

        Raises:
            DistError: it did not say it in time, or has left.
        """
        if self._serves:
            self._store.set(RUN, own)
        deadline = time.monotonic() + self._timeout.total_seconds()
        while not self._are_there([RUN]):
            if time.monotonic() > deadline:
                msg = f"what answers there did not say which run it is within {self._timeout}"
                raise DistError(msg)
            time.sleep(_PERIOD)
        return self._store.get(RUN).decode()

    @property
    def _timeout(self) -> timedelta:
        return ARRIVAL_TIMEOUT if self._nodes.of_hostfile else _TIMEOUT

    def _open(self, port: int) -> TCPStore:
        # A node of an attempt before, which has lost its launcher program, may still have the port of a hostfile's run.
        deadline = time.monotonic() + (LINGERING if self._nodes.of_hostfile else 0)
        while self._serves:
            try:
                return TCPStore(self._host, port, is_master=True, timeout=self._timeout, wait_for_workers=False)
            except DistError:
                # Two nodes on one machine: the other one came first.
                self._serves = self._nodes.rank is not None
                if self._serves and time.monotonic() > deadline:
                    raise
            time.sleep(_PERIOD if self._serves else 0)
        return connect_within((self._host, port), self._timeout)

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
        if not self._store.check([store_keys.STOP]):
            return
        number, times = json.loads(self._store.get(store_keys.STOP))
        if times > 1:
            raise SystemExit(of_signal(number))
        if not self.asked_to_stop:  # a scheduler's signal may have come here too
            self.asked_to_stop = True
            signal.raise_signal(number)
