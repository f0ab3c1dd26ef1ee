"""Agreement of the ranks on a checkpoint, in a process group of its own where it is written by a second thread.

Two threads of a process have no order: one that used a group of the training would race with the step.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from pretrain.collectives import quiet_gloo

T = TypeVar("T")


def between_hosts(description: str, timeout_minutes: int) -> dist.ProcessGroup | None:
    """Return a new group of all ranks that needs no device, or None for a single rank. Collective."""
    if dist.get_world_size() == 1:
        return None
    timeout = timedelta(minutes=timeout_minutes)
    with quiet_gloo():
        group: dist.ProcessGroup = dist.new_group(backend="gloo", group_desc=description, timeout=timeout)
    return group


def gathered(value: T, group: dist.ProcessGroup | None = None) -> list[T] | None:
    """Return the values of all ranks on the first one, None on others; a single rank communicates with none."""
    if dist.get_world_size() == 1:
        return [value]
    of_all = [value] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(value, of_all, group=group)
    return of_all


def first_of(value: T, group: dist.ProcessGroup | None = None) -> T:
    """Return the first rank's value on all ranks; a single rank communicates with none."""
    if dist.get_world_size() == 1:
        return value
    agreed = [value]
    dist.broadcast_object_list(agreed, group=group)
    return agreed[0]


class AllRanksBarrier:
    """Vote on whether all ranks are ready, one after every iteration.

    It is started in one iteration and counted in the next, so that no step waits for the device or for a host that is
    behind. All ranks learn it in the same iteration, at most two after the last is ready. Making it is collective.
    """

    def __init__(self, timeout_minutes: int) -> None:
        self._group = between_hosts("agreement", timeout_minutes)
        self._vote: torch.Tensor | None = None
        self._pending: dist.Work | None = None

    def reached(self, *, is_ready: bool) -> bool:
        """Say whether all ranks were ready at the previous call, or now if there is one rank. Every rank calls it."""
        if self._group is None:
            return is_ready
        if self.settled():
            return True
        self._vote = torch.tensor(is_ready, dtype=torch.int32)
        self._pending = dist.all_reduce(self._vote, op=dist.ReduceOp.MIN, group=self._group, async_op=True)
        return False

    def settled(self) -> bool:
        """Wait for the pending vote and return its result, False without one. Every rank calls it."""
        if self._pending is None or self._vote is None:
            return False
        self._pending.wait()
        self._pending = None
        return bool(self._vote.item())
