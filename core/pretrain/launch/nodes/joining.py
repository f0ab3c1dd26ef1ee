"""Joins a node to the rendezvous: it serves the store or connects to it, and all check that it is their run."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

from pretrain.errors import LaunchError
from pretrain.launch.nodes.attempt import ARRIVAL_TIMEOUT
from pretrain.launch.nodes.leader import present_run
from pretrain.launch.nodes.store_client import (
    StoreClient,
    StoreSilenceError,
    connect_within,
    is_here,
    own_address,
)

if TYPE_CHECKING:
    from pretrain.launch.nodes.nodes import Nodes
    from pretrain.launch.restarts import RestartPolicy

HOSTFILE_TIMEOUT = timedelta(minutes=5)
"""Timeout of the rendezvous for the nodes of a hostfile, which are started together; the first import of torch from a
network file system may take minutes."""
LINGERING = 45.0
"""Seconds after which a node that serves has left, also where it has to notice that all others are lost."""
_PERIOD = 0.2
RUN = "run"  # key of the store: the run, which the serving node says, or
OF_NO_RUN = "pretrain rendezvous"  # which serves one run after the other, each under a prefix
LAUNCHER, STOP, READ = "launcher", "stop", "read"
"""Keys of the launcher of a hostfile: it has joined; its stop request; it has read a failure."""
GONE = "gone"  # key: how many nodes have left
_BY_HAND = "by hand:"  # then the options in which all nodes must agree


def join_store(nodes: Nodes, policy: RestartPolicy, patience: float) -> tuple[StoreClient, bool, str]:
    """Serve the store, or connect to it; return a client, whether it is served here, and this node's address."""
    # The store gets `patience` seconds for an answer: a thousand nodes may join at once. The address, at which others
    # reach this node, is "" where node 0 serves: that is HOST, and nobody else needs one.
    fewer = "" if policy.fewest_nodes is None else f" --allow-fewer-nodes {policy.fewest_nodes}"
    spares = f" --spares {nodes.spares}" if nodes.spares else ""
    external = " --external-rdzv" if nodes.external else ""
    own = nodes.run or f"{_BY_HAND} --nnodes {nodes.count}{spares} --max-restarts {policy.limit}{fewer}{external}"
    address = ""
    try:
        tcp_store, serves = _open(nodes)
        store, rank = StoreClient(tcp_store), 0 if serves else nodes.rank or 0
        with store.patient(patience):
            if serves:
                store.set(RUN, own)
            theirs = _run_of(store, nodes)
            _require_server(nodes, theirs)
            if nodes.external:
                address = own_address(nodes.endpoint())
                store = present_run(store, nodes.rendezvous)
                theirs = store.compare_set(RUN, "", own).decode()
            _require_same(nodes.rendezvous, theirs, own)
            if (serves or nodes.of_hostfile) and store.add(taken_key(rank), 1) > 1:
                raise LaunchError(too_many_nodes(nodes, f"node {rank} of {nodes.count} has"))
    except DistError as exc:
        raise failed(nodes, exc) from exc
    return store, serves, address


def failed(nodes: Nodes, error: DistError) -> LaunchError:
    """Return the error of a node that could not join."""
    return LaunchError(f"--rdzv {nodes.rendezvous}: the rendezvous failed ({str(error).splitlines()[0]}).")


def taken_key(node: int) -> str:
    """Return the key that says that a node has come."""
    return f"taken/{node}"


def ended_key(node: int) -> str:
    """Return the key of a node's exit code."""
    return f"ended/{node}"


def is_of_run(store: TCPStore, run: str) -> bool:
    """Say whether the store is that of the run; DistError if the serving node does not say which in time."""
    return bool(store.get(RUN).decode() == run)


def another_run(endpoint: str) -> str:
    """Return the error of a rendezvous at which another run meets."""
    return (
        f"--rdzv {endpoint}: another run uses this address.\n"
        "Wait until it ends, or give this one another port: --rdzv HOST:PORT, or MASTER_PORT with --hostfile."
    )


def too_many_nodes(nodes: Nodes, who: str) -> str:
    """Return the error of a node that finds its place, or all of them, taken."""
    return (
        f"--rdzv {nodes.rendezvous}: {who} joined already.\n"
        "Give each node the same --nnodes, and its own --node-rank or none. Or another run uses this port."
    )


def _open(nodes: Nodes) -> tuple[TCPStore, bool]:
    host, port = nodes.endpoint()
    serves = not nodes.external and (nodes.rank == 0 if nodes.rank is not None else is_here(host))
    # A node of an attempt before, which has lost its launcher program, may still have the port of a hostfile's run.
    deadline = time.monotonic() + (LINGERING if nodes.of_hostfile else 0)
    while serves:
        try:
            return TCPStore(host, port, is_master=True, timeout=_timeout(nodes), wait_for_workers=False), True
        except DistError:
            # Two nodes on one machine: the other one came first.
            serves = nodes.rank is not None
            if serves and time.monotonic() > deadline:
                raise
        time.sleep(_PERIOD if serves else 0)
    return connect_within((host, port), _timeout(nodes)), False


def _run_of(store: StoreClient, nodes: Nodes) -> str:
    """Wait until the serving node has said which run the store is of; return that."""
    timeout = _timeout(nodes)
    deadline = time.monotonic() + timeout.total_seconds()
    while True:
        with suppress(StoreSilenceError):  # the deadline counts
            if store.check([RUN]):
                return store.get(RUN).decode()
        if time.monotonic() > deadline:
            msg = f"the server at {nodes.rendezvous} did not identify its run within {timeout}"
            raise DistError(msg)
        time.sleep(_PERIOD)


def _timeout(nodes: Nodes) -> timedelta:
    return HOSTFILE_TIMEOUT if nodes.of_hostfile else ARRIVAL_TIMEOUT


def _require_server(nodes: Nodes, theirs: str) -> None:
    """Check that a node serves the store, or `pretrain rendezvous` for nodes that were told so."""
    if nodes.of_hostfile or nodes.external == (theirs == OF_NO_RUN):
        return
    said = (
        "a node of a run serves it, not `pretrain rendezvous`.\nLeave out --external-rdzv, or give the address of that."
        if nodes.external
        else "`pretrain rendezvous` serves it, no node.\nPass --external-rdzv on every node, or give another port."
    )
    msg = f"--rdzv {nodes.rendezvous}: {said}"
    raise LaunchError(msg)


def _require_same(endpoint: str | None, theirs: str, own: str) -> None:
    if theirs == own:
        return
    if not theirs.startswith(_BY_HAND) or not own.startswith(_BY_HAND):
        raise LaunchError(another_run(str(endpoint)))
    msg = (
        f"--rdzv {endpoint}: the first node was started with{theirs.removeprefix(_BY_HAND)}, this one "
        f"with{own.removeprefix(_BY_HAND)}.\nGive the same command on every node. Or another run uses this port."
    )
    raise LaunchError(msg)
