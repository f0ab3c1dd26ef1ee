"""One small all-reduce between the hosts in each iteration, for everything that the ranks agree on beside the steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed as dist

from pretrain.checkpoint.writing.agreement import between_hosts

if TYPE_CHECKING:
    from collections.abc import Sequence


class Rider(Protocol):
    """Numbers that ride in the exchange.

    Attributes:
        size: how many, always the same.
    """

    size: int

    def own(self) -> list[float]:
        """Return this rank's numbers, `size` of them."""
        ...

    def agreed(self, sums: Sequence[float]) -> None:
        """Take their sums over all ranks, the same on every rank."""
        ...


class Exchange:
    """Sums of the riders' numbers over all ranks, started in one iteration and read in the next: no step waits for it.

    In float64: sums of the ranks' float32 numbers are exact while their sizes differ by less than 2^29 / ranks, so they
    do not depend on the order, and are equal on all ranks. A world of one rank has its sums at once.
    """

    def __init__(self, *riders: Rider, timeout_minutes: int) -> None:
        """Make the group between the hosts, whose collectives time out after so many minutes; collective."""
        self._riders = riders
        self._group = between_hosts("agreement", timeout_minutes)
        self._sums: torch.Tensor | None = None
        self._pending: dist.Work | None = None

    def turn(self) -> None:
        """Give the riders the sums of the turn before, and begin another; every rank calls it after every iteration."""
        self.settle()
        own = [number for rider in self._riders for number in rider.own()]
        if self._group is None:
            self._hand_out(own)
            return
        self._sums = torch.tensor(own, dtype=torch.float64)
        self._pending = dist.all_reduce(self._sums, group=self._group, async_op=True)

    def settle(self) -> None:
        """Wait for the turn that has begun, and give the riders its sums."""
        if self._pending is not None and self._sums is not None:
            self._pending.wait()
            self._pending = None
            self._hand_out(self._sums.tolist())

    def sum_now(self, own: Sequence[float]) -> list[float]:
        """Return the sums of these numbers over all ranks, and wait for them; all ranks call it together."""
        sums = torch.tensor(own, dtype=torch.float64)
        if self._group is not None:
            dist.all_reduce(sums, group=self._group)
        totals: list[float] = sums.tolist()
        return totals

    def _hand_out(self, sums: Sequence[float]) -> None:
        begin = 0
        for rider in self._riders:
            rider.agreed(sums[begin : begin + rider.size])
            begin += rider.size
