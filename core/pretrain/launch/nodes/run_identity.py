"""Identity of the run that meets at a rendezvous: the serving node says it, and all others compare it with theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.errors import LaunchError

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from pretrain.launch.nodes.nodes import Nodes

RUN = "run"
"""Key of the store."""
_BY_HAND = "by hand:"  # then the options in which all nodes must agree


def run_identity(nodes: Nodes, max_restarts: int, fewest_nodes: int | None) -> str:
    """Return the identity of a node's run: of its hostfile, or the options that all nodes must have been given."""
    fewer = "" if fewest_nodes is None else f" --allow-fewer-nodes {fewest_nodes}"
    return nodes.run or f"{_BY_HAND} --nnodes {nodes.count} --max-restarts {max_restarts}{fewer}"


def require_same(endpoint: str | None, theirs: str, own: str) -> None:
    """Check that the serving node is of this node's run.

    Raises:
        LaunchError: it is not; where both were started by hand, with the options of both.
    """
    if theirs == own:
        return
    if not theirs.startswith(_BY_HAND) or not own.startswith(_BY_HAND):
        raise LaunchError(another_run(str(endpoint)))
    msg = (
        f"--rdzv {endpoint}: node 0 was started with{theirs.removeprefix(_BY_HAND)}, this one "
        f"with{own.removeprefix(_BY_HAND)}.\nGive the same command on every node; or another run meets there."
    )
    raise LaunchError(msg)


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
