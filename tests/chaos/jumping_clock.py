"""The wall clock of this process, moved: what a corrected clock of a machine looks like to Python."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_now = time.time


def move_clock(seconds: float, read: Callable[[], object] = lambda: None) -> None:
    """Let `time.time` be so many seconds off the machine's clock, in this process alone, and call `read` at each look.

    The machine's own clock cannot be moved without being its administrator, nor for one program: Linux's time
    namespaces have a clock of their own for the time since the start, not for the date.
    """

    def moved() -> float:
        read()
        return _now() + seconds

    time.time = moved
