"""Node on which this process starts the ranks, as a scheduler's variables say it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnNode:
    """One of several nodes.

    Attributes:
        by: whose variables say it.
        count: number of nodes.
        rank: of this node.
        rendezvous: "HOST:PORT" on node 0; None where the variables do not tell.
        nproc: ranks of a node; None where the variables do not tell.
    """

    by: str
    count: int
    rank: int
    rendezvous: str | None
    nproc: int | None = None
