"""Measures the phases of a step on the slowest and the fastest rank."""

from __future__ import annotations

import time
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from pretrain.report.hang.position import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    import torch

STEP_PHASES = ("data", "forward-backward", "optimizer", "interval")
"""Reported per iteration; "interval" is a whole iteration."""
OTHER_PHASES = ("evaluation", "save")  # reported as their whole time within the interval
PHASES = STEP_PHASES + OTHER_PHASES

Spread = tuple[float, float]  # the fastest and the slowest rank's time in milliseconds


class PhaseTimers:
    """Add up wall time by phase, on a `clock` in seconds; without `synchronize` it is the time to submit the work."""

    def __init__(
        self,
        *,
        synchronize: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        position: Position | None = None,
    ) -> None:
        self.position = position or Position()
        self._synchronize = synchronize
        self._clock = clock
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self.ranges: Callable[[str], AbstractContextManager[object]] | None = None  # names phases in a trace

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the with-block; phases may be nested, the outer one includes the inner one."""
        before = self.position.enter(name)
        started = self._now()
        try:
            with nullcontext() if self.ranges is None else self.ranges(name):
                yield
        finally:
            self._seconds[name] += self._now() - started
            self.position.leave(before)

    @contextmanager
    def unmeasured(self) -> Iterator[None]:
        """Leave the phases within the with-block out of the measurement."""
        seconds = dict(self._seconds)
        yield
        self._seconds = seconds

    def take(self) -> dict[str, float]:
        """Return the seconds of each phase on this rank since the last call, and start again from zero."""
        seconds = self._seconds
        self._seconds = dict.fromkeys(PHASES, 0.0)
        return seconds

    def _now(self) -> float:
        if self._synchronize:
            self._synchronize()
        return self._clock()


def across_ranks(
    seconds: Mapping[str, float], iterations: int, *, device: torch.device | str = "cpu"
) -> dict[str, Spread]:
    """Return the spread over all ranks of phases that took any time, from `PhaseTimers.take`'s seconds. Collective."""
    import torch  # noqa: PLC0415  the console's text needs no torch
    from torch import distributed  # noqa: PLC0415

    own = [1000 * seconds[name] / (iterations if name in STEP_PHASES else 1) for name in PHASES]
    slowest = [*own, *(-value for value in own)]
    if distributed.is_available() and distributed.is_initialized():
        tensor = torch.tensor(slowest, dtype=torch.float32, device=device)  # not every device reduces fp64
        distributed.all_reduce(tensor, op=distributed.ReduceOp.MAX)
        slowest = tensor.tolist()
    spreads = zip(PHASES, (-value for value in slowest[len(PHASES) :]), slowest[: len(PHASES)], strict=True)
    return {name: (fastest, slowest) for name, fastest, slowest in spreads if slowest > 0}


def timers_line(spreads: Mapping[str, Spread]) -> str:
    """Return the spreads as one line for the log."""
    phases = (f"{name}: ({fastest:.1f}, {slowest:.1f})" for name, (fastest, slowest) in spreads.items())
    return "(min, max) time across ranks (ms): " + " | ".join(phases)
