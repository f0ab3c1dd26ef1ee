"""Failures of nodes, as the launchers of a run with restarts find them."""

from __future__ import annotations

import signal
import socket
import time
from typing import TYPE_CHECKING, Any

from pretrain.launch.processes.failure import CRASH, USER_ERROR, Failure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from pretrain.launch.nodes.arrivals import Arrival


def silence(place: int, node: Arrival, seconds: float) -> Failure:
    """Return the loss of a node whose launcher has given no sign for so long."""
    return _failure(
        f"Node {place} ({node.host}) has given no sign for {seconds:.0f} s: "
        "its launcher was killed, or the host or the network between is down.",
        place=place,
        host=node.host,
    )


def loss_of_node_0(endpoint: str | None) -> Failure:
    """Return the loss of the node that serves the rendezvous."""
    return _failure(
        f"--rdzv {endpoint}: node 0, which serves the rendezvous, cannot be reached any more, and "
        "cannot be replaced.\nGive the command again on all nodes, with --resume auto."
    )


def absence(endpoint: str | None, there: int, wanted: int, waited: timedelta, *, at_restart: bool) -> Failure:
    """Return the failure of nodes that have not come: a mistake at first; at a restart a loss, as any other."""
    text = (
        f"--rdzv {endpoint}: {there} of {wanted} nodes have come within {waited}.\n"
        "Give the same command on every node; --allow-fewer-nodes restarts without some."
    )
    return _failure(text, CRASH if at_restart else USER_ERROR)


def one_node_rank(endpoint: str | None, nodes: Sequence[Arrival]) -> Failure:
    """Return the user error of nodes that have the same --node-rank."""
    hosts = ", ".join(node.host for node in nodes)
    text = (
        f"--rdzv {endpoint}: --node-rank {nodes[0].place} was given on {len(nodes)} nodes ({hosts}).\n"
        "Give each node its own, or none."
    )
    return _failure(text, USER_ERROR)


def asked_to_end(place: int | None, code: int) -> Failure:
    """Return the reason that other nodes show when a signal has ended this one.

    Args:
        place: of this node; None if it has none yet.
        code: 128 + the signal's number.
    """
    name = signal.Signals(code - 128).name if code > 128 else f"exit code {code}"
    here = socket.gethostname()
    node = f"The node on {here}" if place is None else f"Node {place} ({here})"
    text = f"{node} was asked to end by {name}."
    return _failure(text, asked=True)


def _failure(text: str, exit_code: int = CRASH, **more: Any) -> Failure:
    return Failure(rank=0, when=time.time(), exit_code=exit_code, text=text, of_launcher=True, **more)
