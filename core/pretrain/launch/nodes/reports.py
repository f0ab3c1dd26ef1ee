"""Reports of an attempt's end that nodes share, and the failures of nodes themselves."""

from __future__ import annotations

import json
import signal
import socket
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from torch.distributed import DistError

from pretrain.launch.processes.early_signals import REQUEST_SIGNALS
from pretrain.launch.processes.failure import CRASH, USER_ERROR, Failure, root_cause
from pretrain.report.plain_text import some_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    from pretrain.launch.nodes.nodes import Nodes
    from pretrain.launch.nodes.store_client import StoreClient

_FAILURE, _STOPPED, _TOLD = "failure", "stopped", "told"
"""Keys of an attempt: the failure that says most about its end so far; why the ranks have stopped without one; the
failure of a rank that writes a checkpoint before it ends, which ends no other rank."""

_NAMES = 8  # hosts that a line names at most


class Reports:
    """Reports of one attempt; every method raises DistError where the store is lost or silent."""

    def __init__(self, store: StoreClient | PrefixStore) -> None:
        self._store = store

    def failure(self) -> Failure | None:
        """Return the failure that says most about the end so far."""
        return self._read(_FAILURE)

    def stopped(self) -> Failure | None:
        """Return why the ranks have left before the end of the training without a failure."""
        return self._read(_STOPPED)

    def told(self) -> Failure | None:
        """Return the failure of a rank that still writes a checkpoint."""
        return self._read(_TOLD)

    def keep(self, own: Failure) -> Failure:
        """Return the failure that was reported before; this node's replaces it if it says more about the end."""
        # A node that was asked to end has the last word; and a cause says more than its consequence.
        text = json.dumps(asdict(own))
        kept = self._store.compare_set(_FAILURE, "", text).decode()
        first = Failure(**json.loads(kept))
        if (own.asked, not own.lost_peer) <= (first.asked, not first.lost_peer):
            return first
        self._store.compare_set(_FAILURE, kept, text)
        return own

    def keep_stop(self, stop: Failure) -> None:
        """Keep why the ranks have stopped; a node that was asked to has the last word: nothing is restarted then."""
        text = json.dumps(asdict(stop))
        if stop.asked:
            self._store.set(_STOPPED, text)
        else:
            self._store.compare_set(_STOPPED, "", text)

    def tell(self, failures: Sequence[Failure]) -> None:
        """Keep the cause among failures of ranks that still write a checkpoint; it ends nothing yet."""
        causes = [failure for failure in failures if not failure.lost_peer]
        if causes:
            self._store.compare_set(_TOLD, "", json.dumps(asdict(root_cause(causes))))

    def _read(self, key: str) -> Failure | None:
        return Failure(**json.loads(self._store.get(key))) if self._store.check([key]) else None


class SharedRequests:
    """Requests that a signal of `REQUEST_SIGNALS` makes at any launcher."""

    def __init__(self, store: StoreClient) -> None:
        self._store = store
        self._wanted: set[int] = set()
        self._passed_on = {number: self._count(number, 0) or 0 for number in REQUEST_SIGNALS}

    def ask(self, number: int) -> None:
        """Have all launchers see this signal with the next calls of `came`, this one too."""
        self._wanted.add(number)

    def came(self) -> list[signal.Signals]:
        """Return the signals that some node has got since the last call."""
        wanted, self._wanted = self._wanted, set()
        came = []
        for number, before in self._passed_on.items():
            asked = self._count(number, int(number in wanted))
            if asked is not None and asked > before:
                self._passed_on[number] = asked
                came.append(number)
        return came

    def _count(self, number: int, more: int) -> int | None:
        with suppress(DistError):
            return self._store.add(request_key(number), more)
        return None


def request_key(number: int) -> str:
    """Return the key of the run that counts how many times this signal has come."""
    return f"requests of {signal.Signals(number).name}"


def silent_node(place: int, host: str, seconds: float) -> Failure:
    """Return the loss of a node whose launcher has sent no heartbeat for so long."""
    text = (
        f"Node {place} ({host}) has sent no heartbeat for {seconds:.0f} s: "
        "its launcher was killed, or its host or the network is down."
    )
    return Failure(text=text, of_launcher=True, place=place, host=host)


def lost_node_0(nodes: Nodes, *, trains: bool) -> Failure:
    """Return the loss of the node, or the process, that serves the rendezvous; a training can be resumed."""
    lost, again = f"--rdzv {nodes.rendezvous}: node 0", "It cannot be replaced: give the command again on all nodes"
    if nodes.external:
        lost, again = (
            f"--rdzv {nodes.rendezvous}: `pretrain rendezvous`",
            "Start it again there, and where a node has ended give the command again",
        )
    if nodes.of_hostfile:
        lost, again = f"--hostfile: the first host, {nodes.endpoint()[0]}", "Give the command again"
    text = (
        f"{lost}, which serves the rendezvous, cannot be reached any more from {socket.gethostname()}.\n"
        f"{again}{', with --resume auto' if trains else ''}."
    )
    return Failure(text=text, of_launcher=True)


def who_trains(nodes: Nodes, members: Sequence[str], waiting: Sequence[str]) -> str:
    """Return the line that names the hosts that train, and those that wait, at the begin of an attempt."""
    train = f"--spares {nodes.spares}: {some_of(members, _NAMES)} train"
    return f"{train}; {some_of(waiting, _NAMES) if waiting else 'none'} waiting\n"


def waiting_spare(nodes: Nodes, members: int, *, is_left_out: bool) -> str:
    """Return the line of a node that waits, which an attempt has not taken."""
    rest = "this one joins at the next restart"
    if is_left_out:
        rest = (
            "this one has caused failures and is left out while others are there. "
            "Once it is mended, end this process and give the same command again"
        )
    elif nodes.spares:
        rest = "this one is a spare, and takes the place of one that is lost"
    return f"--rdzv {nodes.rendezvous}: the run continues with {members} node{'s' * (members > 1)}; {rest}.\n"


def absent_nodes(nodes: Nodes, there: int, waited: timedelta, *, at_restart: bool) -> Failure:
    """Return the failure of nodes that are missing: a user error at first, a loss at a restart."""
    fewer = "; --allow-fewer-nodes restarts without some" if at_restart else ""
    text = (
        f"--rdzv {nodes.rendezvous}: {there} of {nodes.count} nodes have joined within {waited}.\n"
        f"Give the same command on every node{fewer}."
    )
    return Failure(exit_code=CRASH if at_restart else USER_ERROR, text=text, of_launcher=True)


def shared_node_rank(nodes: Nodes, rank: int | None, hosts: Sequence[str]) -> Failure:
    """Return the user error of nodes that have the same --node-rank."""
    text = (
        f"--rdzv {nodes.rendezvous}: --node-rank {rank} was given on {len(hosts)} nodes ({', '.join(hosts)}).\n"
        "Give each node its own, or none."
    )
    return Failure(exit_code=USER_ERROR, text=text, of_launcher=True)


def signalled_node(place: int | None, code: int) -> Failure:
    """Return the reason that other nodes show when a signal has ended this one; `code` is 128 + its number."""
    name = signal.Signals(code - 128).name if code > 128 else f"exit code {code}"
    here = socket.gethostname()
    node = f"The node on {here}" if place is None else f"Node {place} ({here})"
    return Failure(text=f"{node} was asked to end by {name}.", of_launcher=True, asked=True)
