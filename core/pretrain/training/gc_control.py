"""Garbage collection between steps; within one, a rank that collects makes all others wait."""

from __future__ import annotations

import gc
from typing import Self


class GcControl:
    """A context in which garbage is collected only when it is asked for, on all ranks after the same iterations.

    Like Megatron-LM's --manual-gc. Objects that exist at the beginning, mostly imported modules, are left out of
    collections (gc.freeze), which makes them short; afterwards they are collected again.
    """

    def __init__(self, interval: int, *, is_manual: bool) -> None:
        """Prepare it.

        Args:
            interval: iterations between two collections.
            is_manual: False leaves Python's collector as it is.
        """
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

    def after(self, iteration: int) -> None:
        """Collect every `interval` iterations; called after each."""
        if iteration % self._interval == 0:
            self.collect()

    def collect(self) -> None:
        """Collect now; called also where no step waits, after evaluations and checkpoints."""
        if self._is_manual:
            gc.collect()
