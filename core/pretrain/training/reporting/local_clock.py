"""Time of the attention kernels of a rank: work that waits for no other rank, in every layout.

Attention without its projections has no collective inside it under tensor, sequence, pipeline and data parallelism, and
the same shape on all ranks. The host's clock around a whole step would measure the slowest rank on every rank.
"""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from pretrain.model.layer import CoreAttention

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn
    from torch.utils.hooks import RemovableHandle

CALLS = 4
"""Calls that are measured in a step: those of the rank's first layers with the first micro-batch."""
_KEPT = 256
"""Latest calls of an interval that are measured on a device; each holds two events."""


class LocalClock:
    """Measures the first calls of attention kernels in a step: on the CPU by the host's clock, else by device events.

    Events are read when the interval ends, where the host waits for the device anyway.
    """

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> None:
        """Measure on this device."""
        self._event, self._clock = _timing_event(device), clock
        self._left = 0
        self._begun: Any = None
        self._seconds, self._calls = 0.0, 0
        self._events: deque[tuple[Any, Any]] = deque(maxlen=_KEPT)
        self._hooks: list[RemovableHandle] = []

    def begin_step(self) -> None:
        """Measure the next calls."""
        self._left = CALLS

    def end_step(self) -> None:
        """Measure no more calls: evaluations have other kernels' times."""
        self._left = 0

    def attach(self, models: Iterable[nn.Module]) -> None:
        """Measure the attention of the first layers of these model chunks."""
        found = (module for model in models for module in model.modules() if isinstance(module, CoreAttention))
        for module in islice(found, CALLS):
            self._hooks += module.register_forward_pre_hook(self._begin), module.register_forward_hook(self._end)

    def detach(self) -> None:
        """Measure nothing more."""
        while self._hooks:
            self._hooks.pop().remove()

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
