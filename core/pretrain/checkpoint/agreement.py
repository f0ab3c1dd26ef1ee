"""Agreement of the ranks on a checkpoint, in process groups of its own where it is written by a second thread.

Two threads of a process have no order: one that used a group of the training would race with the step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist

from pretrain.collectives import AGREEMENT, Tree, tree_of_world

if TYPE_CHECKING:
    from pretrain.collectives import Pending

T = TypeVar("T")


def between_hosts(description: str, timeout_minutes: int) -> Tree:
    """Return a new tree of all ranks that needs no device. Collective."""
    return Tree.between_hosts(description, timeout_minutes)


def gathered(value: T, tree: Tree | None = None) -> list[T] | None:
    """Return the values of all ranks on the first one, None on others; a single rank communicates with none."""
    return (tree or tree_of_world()).gathered(value)


def first_of(value: T, tree: Tree | None = None) -> T:
    """Return the first rank's value on all ranks; a single rank communicates with none."""
    return (tree or tree_of_world()).first_of(value)


class AllRanksBarrier:
    """Vote on whether all ranks are ready, one after every iteration.

    It is started in one iteration and counted in the next, so that no step waits for the device or for a host that is
    behind. All ranks learn it in the same iteration, at most two after the last is ready. Making it is collective.
    """

    def __init__(self, timeout_minutes: int) -> None:
        self._tree = between_hosts(AGREEMENT, timeout_minutes)
        self._vote: torch.Tensor | None = None
        self._pending: Pending | None = None

    def reached(self, *, is_ready: bool) -> bool:
        """Say whether all ranks were ready at the previous call, or now if there is one rank. Every rank calls it."""
        if self._tree.is_alone:
            return is_ready
        if self.settled():
            return True
        self._vote = torch.tensor(is_ready, dtype=torch.int32)
        self._pending = self._tree.begin(self._vote, dist.ReduceOp.MIN)
        return False

    def settled(self) -> bool:
        """Wait for the pending vote and return its result, False without one. Every rank calls it."""
        if self._pending is None or self._vote is None:
            return False
        self._pending.wait()
        self._pending = None
        return bool(self._vote.item())
