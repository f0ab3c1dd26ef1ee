"""The slowest rank of each logged interval, by the time of its own work: waiting for others is not in it."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Literal

import torch

from pretrain.training.rank_rows import rank_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pretrain.training.reporting.local_clock import LocalClock

TOLERATED = 0.10
"""Share by which a rank may be slower than the median of the others."""
PATIENCE = 5
"""Logged intervals in a row after which a rank that is slower is warned of."""
FEWEST = 25
"""Iterations that these intervals have at least: a few calls of a kernel vary by more than the tolerance."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnTimes:
    """Time of a rank's own work in an interval.

    Attributes:
        attention: seconds of a call of the attention kernel, mean; 0 where none was measured.
        data: seconds of an iteration that it waited for micro-batches; below 0 where its stages read none.
    """

    attention: float
    data: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Slowest:
    """The slowest rank of an interval, by the work in which it is most behind.

    Attributes:
        rank: its number.
        slowdown: share by which it is slower than the median of the others, such as 0.25.
        cause: "compute", a call of the attention kernel over that of the others; or "data", the seconds that it waits
            longer for micro-batches over those of an iteration.
    """

    rank: int
    slowdown: float
    cause: Literal["compute", "data"]


def slowest(times: Sequence[OwnTimes], seconds_per_iteration: float) -> Slowest | None:
    """Return the rank that is most behind the median of the others that did the same work; None without others.

    Args:
        times: by rank.
        seconds_per_iteration: of the interval.
    """
    attention = {rank: each.attention for rank, each in enumerate(times)}
    data = {rank: each.data for rank, each in enumerate(times) if each.data >= 0}
    found = []
    if len(times) > 1 and min(attention.values()) > 0:
        rank, usual = _behind(attention)
        found.append(Slowest(rank=rank, slowdown=attention[rank] / usual - 1, cause="compute"))
    if len(data) > 1:
        rank, usual = _behind(data)
        found.append(Slowest(rank=rank, slowdown=(data[rank] - usual) / seconds_per_iteration, cause="data"))
    return max(found, key=lambda each: each.slowdown, default=None)


def _behind(seconds: Mapping[int, float]) -> tuple[int, float]:
    """Return the rank with the most seconds, and the median of the others."""
    slow = max(seconds, key=seconds.__getitem__)
    return slow, median(own for rank, own in seconds.items() if rank != slow)


class Stragglers:
    """Names the slowest rank of each logged interval, and says when one stays slow."""

    def __init__(self, clock: LocalClock, device: torch.device, *, reads_data: bool) -> None:
        """Read this rank's clock, and whether its stages read data; the collective is the device's."""
        self._clock, self._device, self._reads_data = clock, device, reads_data
        self._slow: tuple[int, str] | None = None
        self._intervals = self._iterations = 0
        self._is_told = False

    def of_interval(self, data_seconds: float, iterations: int, seconds_per_iteration: float) -> Slowest | None:
        """Return the slowest rank since the last call; all ranks call it together, where the host waits anyway.

        Args:
            data_seconds: that this rank waited for micro-batches in the interval.
            iterations: of it.
            seconds_per_iteration: wall time.
        """
        data = data_seconds / iterations if self._reads_data else -1.0
        own = OwnTimes(attention=self._clock.take(), data=data)
        return slowest(_of_all_ranks(own, self._device), seconds_per_iteration)

    def warning(self, found: Slowest, iterations: int) -> str | None:
        """Count an interval of so many iterations; return a line when a rank has been slow in so many in a row.

        The line comes once, until another rank, or none, is slow.
        """
        key = (found.rank, found.cause) if found.slowdown > TOLERATED else None
        if key is None or key != self._slow:
            self._slow, self._intervals, self._iterations, self._is_told = key, 0, 0, False
        self._intervals += 1
        self._iterations += iterations
        is_due = self._intervals >= PATIENCE and self._iterations >= FEWEST
        if key is None or self._is_told or not is_due:
            return None
        self._is_told = True
        return _warning(found, self._intervals)


def _warning(found: Slowest, intervals: int) -> str:
    what = "computes" if found.cause == "compute" else "waits for its data"
    look = (
        "Look at its device (clock, temperature, other processes on it) or leave its node out"
        if found.cause == "compute"
        else "Look at its file system and its cores, or raise data.num_workers"
    )
    return (
        f"warning: rank {found.rank} {what} {100 * found.slowdown:.0f} % longer than the median of the others, "
        f"over {100 * TOLERATED:.0f} % for {intervals} logged intervals; all ranks wait for it. {look}."
    )


def _of_all_ranks(own: OwnTimes, device: torch.device) -> list[OwnTimes]:
    rows = rank_rows(torch.tensor([own.attention, own.data], device=device)).tolist()
    return [OwnTimes(attention=attention, data=data) for attention, data in rows]
