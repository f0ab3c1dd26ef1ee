"""Sizes of trials: the training's, cut where they would not fit into memory or take too long."""

from __future__ import annotations

import math
from dataclasses import dataclass

SECONDS = 5.0
"""Time that a kernel's call, forward and backward, may take at the speed of the device's matmuls."""

ORACLE_ELEMENTS = 2**23
"""Entries of the largest tensor that the oracle makes: 64 MiB in float64, a second on one core."""

ORACLE_FLOPS = 5e10
"""Operations of the oracle's matmuls: a few seconds in float64 on a core of a server."""

SHARE = 0.25
"""Part of the free memory that a kernel's call may take."""

PATIENCE = 4
"""Factor by which one unit may be over: 20 seconds, less than after which a rank counts as silent."""

LENIENCE = 2
"""The same for the memory: half of what is free."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """Room for one trial.

    Attributes:
        flops: operations that the device does in `SECONDS`.
        memory: bytes that the call may take on the device.
    """

    flops: float
    memory: float

    @classmethod
    def of(cls, speed: float, free: int, ranks: int) -> Room:
        """Return the room on a device.

        Args:
            speed: FLOP/s of its matmuls.
            free: bytes of its memory.
            ranks: those that share the memory.
        """
        return cls(flops=_rounded(SECONDS * speed), memory=_rounded(SHARE * free / ranks))

    def units(self, wanted: int, what: str, *, flops: float = 0.0, size: float = 0.0) -> int:
        """Return the number of units (sequences, tokens) that there is room for, at most what is wanted.

        Args:
            wanted: those of the training.
            what: name of a unit.
            flops: of one unit, forward and backward.
            size: bytes of one unit.

        Raises:
            NoRoomError: there is none for one.
        """
        by_time = self.flops / flops if flops else wanted
        by_memory = self.memory / size if size else wanted
        found = int(min(wanted, by_time, by_memory))
        if found:
            return found
        if PATIENCE * by_time < 1:
            msg = f"{what} would take {SECONDS / by_time:.0f} s at the speed of the matmuls"
            raise NoRoomError(msg)
        if LENIENCE * by_memory < 1:
            msg = f"{what} would take about {size / 2**30:.1f} GiB; {LENIENCE * SHARE:.0%} of the free memory is less"
            raise NoRoomError(msg)
        return 1


class NoRoomError(Exception):
    """Trial that cannot be made on this device; the text is for people."""


def _rounded(value: float) -> float:
    """Return the power of two below, so that ranks of like devices try the same sizes."""
    return 2.0 ** math.floor(math.log2(max(value, 1.0)))


def step_for(count: int, limit: float) -> int:
    """Return the smallest step by which `count` entries become at most `limit`."""
    return max(1, -(-count // max(1, int(limit))))
