"""Python's garbage collector between steps alone: in one, a rank that collects lets all others wait."""

from __future__ import annotations

import gc
from typing import Self


class Garbage:
    """A context in which garbage is collected only when it is asked for, on all ranks after the same iterations.

    As Megatron-LM's --manual-gc. What is there at the beginning, above all the modules that were imported, is left out
    of collections (gc.freeze), which makes them short; it is looked at again afterwards.
    """

    def __init__(self, interval: int, *, is_manual: bool) -> None:
        """Prepare it.

        Args:
            interval: iterations between two collections.
            is_manual: False: leave the collector alone.
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
        """Collect if it is time; called after every iteration."""
        if iteration % self._interval == 0:
            self.collect()

    def collect(self) -> None:
        """Collect now; called also where no step waits, after evaluations and checkpoints."""
        if self._is_manual:
            gc.collect()
