"""Names the slowest rank of each logged interval, by the time of its own work without waiting for others."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from pretrain.collectives import tree_of_world
from pretrain.model.layer import CoreAttention
from pretrain.report.plain_text import rank_names
from pretrain.training.event import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from pretrain.engine.protocol import Engine, Step
    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout


TOLERATED = 0.10  # share by which a rank may be slower than the median of the others
PATIENCE = 5  # logged intervals in a row after which a rank that is slower is warned of
FEWEST = 25  # iterations that these intervals have at least: a few calls of a kernel vary by more than the tolerance


class OwnTimes(NamedTuple):
    """Time of a rank's own work in an interval."""

    attention: float  # seconds of a call of the kernel, mean; 0 where none was measured
    data: float  # seconds of an iteration that it waited for micro-batches; below 0: its stages read none


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowRank:
    """A rank that is behind the others in an interval, by one kind of work."""

    rank: int
    slowdown: float  # share by which it is slower than the median of the others, such as 0.25
    cause: Literal["compute", "data"]  # by a call of attention, or by the seconds of an iteration


def slow_ranks(times: Sequence[OwnTimes], seconds_per_iteration: float) -> list[SlowRank]:
    """Return the slowest rank of each kind of work, and all that are over the tolerance, those most behind first."""
    # Each is held against the others that did the same work; without others there is none.
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


@dataclass(slots=True)
class _Streak:
    intervals: int = 0
    iterations: int = 0
    is_told: bool = False


class Stragglers:
    """Names the slowest rank of each logged interval, and says when ranks stay slow."""

    def __init__(self, clock: LocalClock, *, reads_data: bool) -> None:
        self._clock, self._reads_data = clock, reads_data
        self._streaks: dict[tuple[int, str], _Streak] = {}

    def of_interval(self, data_seconds: float, iterations: int, seconds_per_iteration: float) -> list[SlowRank]:
        """Return `slow_ranks` since the last call on rank 0, none elsewhere; all ranks call it where the host waits."""
        data = data_seconds / iterations if self._reads_data else -1.0
        times = tree_of_world().gathered(OwnTimes(self._clock.take(), data))
        return slow_ranks(times or [], seconds_per_iteration)

    def warnings(self, found: Sequence[SlowRank], iterations: int) -> list[tuple[SlowRank, str]]:
        """Count an interval of so many iterations; return a line for those that have been slow in so many in a row."""
        # Ranks that are slow by the same cause share a line, which comes with the slowest of them. A rank is told of
        # once, until it is within the tolerance.
        slow = [each for each in found if each.slowdown > TOLERATED]
        self._streaks = {key: self._streaks.get(key, _Streak()) for key in [(each.rank, each.cause) for each in slow]}
        due: dict[str, list[SlowRank]] = {}
        shortest: dict[str, int] = {}  # intervals in which all of the ranks that share a line were slow
        for each in slow:
            streak = self._streaks[each.rank, each.cause]
            streak.intervals += 1
            streak.iterations += iterations
            if not streak.is_told and streak.intervals >= PATIENCE and streak.iterations >= FEWEST:
                streak.is_told = True
                due.setdefault(each.cause, []).append(each)
                shortest[each.cause] = min(streak.intervals, shortest.get(each.cause, streak.intervals))
        return [(ranks[0], _warning(ranks, shortest[cause])) for cause, ranks in due.items()]


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
    do, look = _WORDS[ranks[0].cause][len(ranks) > 1]
    least, most = f"{100 * ranks[-1].slowdown:.0f}", f"{100 * ranks[0].slowdown:.0f}"
    return (
        f"warning: {rank_names(each.rank for each in ranks)} {do} {most if least == most else f'{least} to {most}'} % "
        f"longer than the median of the others, and over {100 * TOLERATED:.0f} % for {intervals} logged intervals; all "
        f"ranks wait for {look}."
    )


CALLS = 4  # calls that are measured in a step: those of the rank's first layers with the first micro-batch
_KEPT = 256  # latest calls of an interval that are measured on a device; each holds two events


class LocalClock(Event):
    """Measures the first calls of attention kernels in a step: on the CPU by the host's clock, else by device events.

    Attention without its projections has no collective inside it under tensor, sequence, pipeline and data parallelism,
    and the same shape on all ranks. The host's clock around a whole step would measure the slowest rank on every rank.
    Events are read when the interval ends, where the host waits for the device anyway.
    """

    @classmethod
    def of(cls, recipe: Recipe, engine: Engine, layout: Layout, device: torch.device) -> LocalClock | None:
        """Return a clock on this rank's attention; None where no slowest rank is named."""
        if layout.world_size == 1 or not recipe.logging.log_straggler:
            return None
        clock = cls(device)
        if recipe.kernels.compile == "none":  # a compiled layer has no attention of its own
            clock.attach(engine.models)
        return clock

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> None:
        self._event, self._clock = _timing_event(device), clock
        self._left = 0
        self._begun: Any = None
        self._seconds, self._calls = 0.0, 0
        self._events: deque[tuple[Any, Any]] = deque(maxlen=_KEPT)

    def begin_step(self) -> None:
        """Measure the next calls."""
        self._left = CALLS

    def end_step(self, iteration: int, step: Step) -> None:  # noqa: ARG002  an event's signature
        """Measure no more calls: evaluations have other kernels' times."""
        self._left = 0

    def attach(self, models: Iterable[nn.Module]) -> list[RemovableHandle]:
        """Measure the attention of the first layers of these model chunks; return the hooks, which may be removed."""
        found = (module for model in models for module in model.modules() if isinstance(module, CoreAttention))
        return [
            hook
            for module in islice(found, CALLS)
            for hook in (module.register_forward_pre_hook(self._begin), module.register_forward_hook(self._end))
        ]

    def take(self) -> float:
        """Return the mean seconds of a call since the last time, 0 without one; the device must be idle."""
        seconds = self._seconds + sum(begin.elapsed_time(end) for begin, end in self._events) / 1000
        calls = self._calls + len(self._events)
        self._seconds, self._calls = 0.0, 0
        self._events.clear()
        return seconds / calls if calls else 0.0

    def _begin(self, _module: nn.Module, _inputs: Any) -> None:
        if self._left <= 0:
            return
        if self._event is None:
            self._begun = self._clock()
        else:
            self._begun = self._event()
            self._begun.record()

    def _end(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        if self._left <= 0:
            return
        self._left -= 1
        if self._event is None:
            self._seconds += self._clock() - self._begun
            self._calls += 1
        else:
            end = self._event()
            end.record()
            self._events.append((self._begun, end))


def _timing_event(device: torch.device) -> Callable[[], Any] | None:
    """Return what makes an event with a time; None where the device computes when it is called, or times nothing."""
    if device.type == "cpu":
        return None
    try:
        event = partial(torch.get_device_module(device).Event, enable_timing=True)  # a module may have no such class
        begin, end = event(), event()
        begin.record()
        end.record()
        end.synchronize()
        begin.elapsed_time(end)
    except (AttributeError, NotImplementedError, RuntimeError):
        return None
    return event
