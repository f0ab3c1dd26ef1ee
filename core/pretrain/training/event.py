"""Events of the training loop: what happens beside the steps; and garbage collection, the simplest of them."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pretrain.engine.protocol import KeepUpdate, Step


@dataclass(frozen=True, kw_only=True, slots=True)
class Due:
    """What is due after an iteration, equal on all ranks."""

    iteration: int  # from 1
    urgent: str = ""  # reason from outside to end here, such as "SIGTERM"; nothing is evaluated before
    reason: str = ""  # the same, or that of `train.exit_interval`; "" if the training continues
    line: bool = False
    checkpoint: bool = False  # not the last one, which `Event.end` writes
    copy: bool = False  # of the state to the nodes' disks
    evaluation: bool = False  # not the last one


class Event:
    """One thing that happens beside the steps; a subclass overrides what it needs.

    The loop calls all events in one order, on all ranks alike. `begin_step` and `end_step` may not wait for the device.
    """

    @property
    def keep_update(self) -> KeepUpdate | None:
        """Decision on an update before it is made, as `Engine.train_step` takes it; of one event, for all steps."""
        return None

    def begin(self) -> None:
        """Before the first step, if any follows."""

    def begin_step(self) -> None:
        """Right before a step."""

    def end_step(self, iteration: int, step: Step) -> None:
        """Right after the step of an iteration that is counted."""

    def after_iteration(self, due: Due) -> bool:  # noqa: ARG002  for those that override it
        """After an iteration, also a skipped one; return True if it was taken back: then no other event is called."""
        return False

    def end(self, reason: str) -> None:
        """After the last iteration; `reason` is empty if the training came to its end."""


class GcControl(Event):
    """A context in which garbage is collected only when it is asked for, on all ranks after the same iterations.

    Within an iteration, a rank that collects makes all others wait. Like Megatron-LM's --manual-gc. Objects that exist
    at the beginning, mostly imported modules, are left out of collections (gc.freeze), which makes them short;
    afterwards they are collected again.
    """

    def __init__(self, interval: int, *, is_manual: bool) -> None:
        self._interval, self._is_manual = interval, is_manual
        self._was_enabled = True

    def __enter__(self) -> Self:
        if self._is_manual:
            self._was_enabled = gc.isenabled()
            gc.disable()
            gc.collect()
            gc.freeze()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._is_manual:
            gc.unfreeze()
            if self._was_enabled:
                gc.enable()

    def after_iteration(self, due: Due) -> bool:
        """Collect every `interval` iterations."""
        if due.iteration % self._interval == 0:
            self.collect()
        return False

    def collect(self) -> None:
        """Collect now; called where no step waits, after evaluations and checkpoints."""
        if self._is_manual:
            gc.collect()
