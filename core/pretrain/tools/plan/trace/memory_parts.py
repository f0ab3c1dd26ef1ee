"""Parts of a device's memory over a traced step."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from pretrain.tools.plan.stage_plan import Moment

if TYPE_CHECKING:
    from pretrain.tools.plan.trace.place import Place
    from pretrain.tools.plan.trace.rank_trace import RankTrace
    from pretrain.tools.plan.trace.storages import Block

POINTS = 400
"""Moments of a course."""


class MemoryCourse:
    """Memory of the last step of a trace, on the device or on the host.

    Attributes:
        peak: time at which most is allocated.
        peak_bytes: then allocated.
    """

    def __init__(self, trace: RankTrace, *, on_host: bool = False) -> None:
        """Follow the blocks of one side."""
        self._begin, self._updated, self._end = trace.steps[-1]
        self._blocks = [
            (block, _part(block, number, trace))
            for number, block in enumerate(trace.blocks)
            if block.on_host == on_host and block.size and not _died_before(block, self._begin)
        ]
        self._changes = self._sorted_changes()
        self.peak, self.peak_bytes = self._find_peak()

    def parts(self, time: int) -> dict[str, int]:
        """Return the bytes of each part that are allocated at a time."""
        found: dict[str, int] = defaultdict(int)
        for block, part in self._blocks:
            if block.born <= time and (block.died is None or block.died > time):
                found[part] += block.size
        return dict(found)

    def moments(self) -> list[Moment]:
        """Return the course at `POINTS` moments of equal distance, and at the peak."""
        span = max(1, self._end - self._begin)
        times = {self._begin + span * point // POINTS for point in range(POINTS + 1)}
        times.add(max(self.peak, self._begin))
        found: dict[str, int] = defaultdict(int)
        moments, changes = [], iter(self._changes)
        change = next(changes, None)
        for time in sorted(times):
            while change is not None and change[0] <= time:
                found[change[1]] += change[2]
                change = next(changes, None)
            moments.append(Moment(at=(time - self._begin) / span, parts=dict(found)))
        return moments

    def newest_at_peak(self) -> Place | None:
        """Return where the last block before the peak was allocated."""
        newest = max((block for block, _ in self._blocks if block.born <= self.peak), key=_born, default=None)
        return None if newest is None else newest.place

    def _sorted_changes(self) -> list[tuple[int, str, int]]:
        changes = [(block.born, part, block.size) for block, part in self._blocks]
        changes += [(block.died, part, -block.size) for block, part in self._blocks if block.died is not None]
        return sorted(change for change in changes if change[0] <= self._end)

    def _find_peak(self) -> tuple[int, int]:
        now = sum(change for time, _, change in self._changes if time < self._begin)
        peak, at = now, self._begin - 1
        for time, _, change in self._changes:
            if time < self._begin:
                continue
            now += change
            if now > peak:
                peak, at = now, time
        return at, peak


def _born(block: Block) -> int:
    return block.born


def _died_before(block: Block, time: int) -> bool:
    return block.died is not None and block.died < time


def _part(block: Block, number: int, trace: RankTrace) -> str:
    """Return the part of `stage_plan.PARTS` to which a block belongs."""
    _, updated, _ = trace.steps[-1]
    if number in trace.weights:
        return "weights"
    if number in trace.gradients:
        return "gradients"
    if block.is_workspace:
        return "workspace"
    if block.place.step == 0 or block.place.phase == "optimizer":
        return "optimizer"
    if block.place.is_accumulation and not block.on_host:
        return "gradients"
    outlives = block.born < updated and (block.died is None or block.died > updated)
    return "gradients" if outlives and not block.on_host else "activations"
