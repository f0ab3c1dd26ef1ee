"""The slowest rank of each logged interval, by the time of its own work: waiting for others is not in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Literal

import torch

from pretrain.report.plain_text import rank_names
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
class SlowRank:
    """A rank that is behind the others in an interval, by one kind of work.

    Attributes:
        rank: its number.
        slowdown: share by which it is slower than the median of the others, such as 0.25.
        cause: "compute", a call of the attention kernel over that of the others; or "data", the seconds that it waits
            longer for micro-batches over those of an iteration.
    """

    rank: int
    slowdown: float
    cause: Literal["compute", "data"]


def slow_ranks(times: Sequence[OwnTimes], seconds_per_iteration: float) -> list[SlowRank]:
    """Return the slowest rank of each kind of work, and all that are over the tolerance, those most behind first.

    Each is held against the others that did the same work; without others there is none.

    Args:
        times: by rank.
        seconds_per_iteration: of the interval.
    """
    attention = {rank: each.attention for rank, each in enumerate(times)}
    data = {rank: each.data for rank, each in enumerate(times) if each.data >= 0}
    found = []
    if len(times) > 1 and min(attention.values()) > 0:
        usual = _usual(attention)
        found += _behind(attention, usual, over=usual, cause="compute")
    if len(data) > 1:
        found += _behind(data, _usual(data), over=seconds_per_iteration, cause="data")
    return sorted(found, key=lambda each: each.slowdown, reverse=True)


def _usual(seconds: Mapping[int, float]) -> float:
    """Return the median of all but the slowest rank; it is the same without any other one of the slower half."""
    return median(sorted(seconds.values())[:-1])


def _behind(
    seconds: Mapping[int, float], usual: float, *, over: float, cause: Literal["compute", "data"]
) -> list[SlowRank]:
    slowest = max(seconds, key=seconds.__getitem__)
    return [
        SlowRank(rank=rank, slowdown=(own - usual) / over, cause=cause)
        for rank, own in seconds.items()
        if rank == slowest or own > usual + TOLERATED * over
    ]


@dataclass(frozen=True, slots=True)
class _Streak:
    """Logged intervals in a row in which a rank is slow."""

    intervals: int = 0
    iterations: int = 0
    is_told: bool = False

    @property
    def is_due(self) -> bool:
        """True if it is long enough to be told of, and was not."""
        return not self.is_told and self.intervals >= PATIENCE and self.iterations >= FEWEST


class Stragglers:
    """Names the slowest rank of each logged interval, and says when ranks stay slow."""

    def __init__(self, clock: LocalClock, device: torch.device, *, reads_data: bool) -> None:
        """Read this rank's clock, and whether its stages read data; the collective is the device's."""
        self._clock, self._device, self._reads_data = clock, device, reads_data
        self._streaks: dict[tuple[int, str], _Streak] = {}

    def of_interval(self, data_seconds: float, iterations: int, seconds_per_iteration: float) -> list[SlowRank]:
        """Return `slow_ranks` since the last call; all ranks call it together, where the host waits anyway.

        Args:
            data_seconds: that this rank waited for micro-batches in the interval.
            iterations: of it.
            seconds_per_iteration: wall time.
        """
        data = data_seconds / iterations if self._reads_data else -1.0
        own = OwnTimes(attention=self._clock.take(), data=data)
        return slow_ranks(_of_all_ranks(own, self._device), seconds_per_iteration)

    def warnings(self, found: Sequence[SlowRank], iterations: int) -> list[tuple[SlowRank, str]]:
        """Count an interval of so many iterations; return a line for those that have been slow in so many in a row.

        Ranks that are slow by the same cause share a line, which comes with the slowest of them. A rank is told of
        once, until it is within the tolerance.
        """
        slow = [each for each in found if each.slowdown > TOLERATED]
        before, self._streaks = self._streaks, {}
        due: dict[str, list[SlowRank]] = {}
        for each in slow:
            key = each.rank, each.cause
            streak = before.get(key, _Streak())
            streak = replace(streak, intervals=streak.intervals + 1, iterations=streak.iterations + iterations)
            if streak.is_due:
                due.setdefault(each.cause, []).append(each)
            self._streaks[key] = replace(streak, is_told=streak.is_told or streak.is_due)
        return [(ranks[0], _warning(ranks, self._shortest(ranks))) for ranks in due.values()]

    def _shortest(self, ranks: Sequence[SlowRank]) -> int:
        """Return the intervals in a row in which all of the ranks were slow."""
        return min(self._streaks[each.rank, each.cause].intervals for each in ranks)


_WORDS = {
    "compute": (
        ("computes", "it. Look at its device (clock, temperature, other processes on it) or leave its node out"),
        ("compute", "them. Look at their devices (clock, temperature, other processes) or leave their nodes out"),
    ),
    "data": (
        ("waits for its data", "it. Look at its file system and its cores, or raise data.num_workers"),
        ("wait for their data", "them. Look at their file systems and cores, or raise data.num_workers"),
    ),
}
"""Words for one rank and for several, by cause."""


def _warning(ranks: Sequence[SlowRank], intervals: int) -> str:
    """Return the line for ranks of one cause, the slowest first."""
    do, look = _WORDS[ranks[0].cause][len(ranks) > 1]
    least, most = f"{100 * ranks[-1].slowdown:.0f}", f"{100 * ranks[0].slowdown:.0f}"
    return (
        f"warning: {rank_names(each.rank for each in ranks)} {do} {most if least == most else f'{least} to {most}'} % "
        f"longer than the median of the others, over {100 * TOLERATED:.0f} % for {intervals} logged intervals; all "
        f"ranks wait for {look}."
    )


def _of_all_ranks(own: OwnTimes, device: torch.device) -> list[OwnTimes]:
    rows = rank_rows(torch.tensor([own.attention, own.data], device=device)).tolist()
    return [OwnTimes(attention=attention, data=data) for attention, data in rows]
