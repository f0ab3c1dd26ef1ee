"""The nodes of a run: how many, and where they meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.errors import LaunchError, RecipeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HOSTFILE_NODE = "PRETRAIN_HOSTFILE_NODE"
"""Environment variable of the nodes that `--hostfile` starts: the identity of their run."""
HOSTFILE_SLOTS = "PRETRAIN_HOSTFILE_SLOTS"
"""Environment variable of these nodes: the ranks of each, in the order of the nodes, with commas between."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Nodes:
    """The nodes of a run on which `pretrain` starts the ranks itself, by the same command on each."""

    count: int = 1
    rendezvous: str | None = None  # "HOST:PORT", HOST being one of them; None for a single node
    rank: int | None = None  # of this node; None: HOST is node 0, the others count in the order of arrival
    run: str = ""  # identity of the run if `--hostfile` started this node

    def __post_init__(self) -> None:
        if self.count == 1 and not self.of_hostfile and (self.rendezvous is not None or self.rank is not None):
            msg = "--rdzv and --node-rank have no effect on one node.\nPass --nnodes N as well, or leave them out."
            raise LaunchError(msg)
        if self.count > 1 and self.rendezvous is None:
            msg = (
                f"--nnodes {self.count} needs a rendezvous: --rdzv HOST:PORT.\n"
                "Give the same command on every node; HOST is one of them, PORT is free there."
            )
            raise LaunchError(msg)
        if self.rank is not None and self.rank >= self.count:
            msg = f"--node-rank {self.rank} is not below --nnodes {self.count}; nodes are counted from 0."
            raise LaunchError(msg)

    @property
    def of_hostfile(self) -> bool:
        """`--hostfile` started this node: its launcher joins the rendezvous too, also that of a single node."""
        return bool(self.run)

    def endpoint(self) -> tuple[str, int]:
        """Return host and port of the rendezvous."""
        host, _, port = (self.rendezvous or "").rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            msg = f"--rdzv '{self.rendezvous}' is not HOST:PORT, such as node0:29500."
            raise LaunchError(msg)
        return host.strip("[]"), int(port)


def largest_fitting(ranks: Sequence[int], fewest: int, check: Callable[[int], object]) -> int:
    """Return how many of the first nodes the layout takes at most, `fewest` or more; else raise RecipeError for all."""
    reason: RecipeError | None = None
    for count in range(len(ranks), max(1, fewest) - 1, -1):
        try:
            check(sum(ranks[:count]))
        except RecipeError as error:
            reason = reason or error
        else:
            return count
    raise reason or RecipeError(f"{len(ranks)} nodes are there; {fewest} are needed.")
