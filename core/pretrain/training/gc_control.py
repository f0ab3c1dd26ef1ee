"""Garbage collection between steps; within one, a rank that collects makes all others wait."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Self

from pretrain.training.event import Event

if TYPE_CHECKING:
    from pretrain.training.event import Due


class GcControl(Event):
    """A context in which garbage is collected only when it is asked for, on all ranks after the same iterations.

    Like Megatron-LM's --manual-gc. Objects that exist at the beginning, mostly imported modules, are left out of
    collections (gc.freeze), which makes them short; afterwards they are collected again.
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
