"""A fault as the ranks of a training receive it: one environment variable, and a folder of signs."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from pretrain.atomic_files import replacing

VARIABLE = "PRETRAIN_CHAOS_FAULT"
FAILURE = "a kernel has failed, as planned"
"""Message of the exception of a kernel."""

_FIRED, _OPEN, _READ = "fired", "open", "clock-read"


class Kind(StrEnum):
    """Act of a rank itself.

    NONE: it trains.
    GATE: it waits until the gate is opened, so that a fault from outside comes at a known moment.
    NAN: one kernel's output is not a number, once.
    SLOW: each call of a kernel takes longer, from the first one on.
    CLOCK: the wall clock jumps ahead by a day, and a kernel fails.
    FULL_DISK: every file of a checkpoint that is opened for writing has no room.
    """

    NONE = "none"
    GATE = "gate"
    NAN = "nan"
    SLOW = "slow"
    CLOCK = "clock"
    FULL_DISK = "full disk"


@dataclass(frozen=True, kw_only=True, slots=True)
class Planted:
    """A fault that waits in the ranks for its moment, and comes once in a training.

    Attributes:
        kind: what happens.
        rank: where; None: on every rank.
        signs: folder through which the ranks and the program tell each other what has happened.
        after: folder of a checkpoint; most faults come two iterations after it is there.
    """

    kind: Kind
    rank: int | None
    signs: Path
    after: Path

    def to_environment(self) -> dict[str, str]:
        """Return the variable that carries it."""
        return {VARIABLE: json.dumps({**dataclasses.asdict(self), "signs": str(self.signs), "after": str(self.after)})}

    @classmethod
    def from_environment(cls) -> Planted | None:
        """Return the fault of this process; None without one."""
        if VARIABLE not in os.environ:
            return None
        values = json.loads(os.environ[VARIABLE])
        return cls(
            kind=Kind(values["kind"]), rank=values["rank"], signs=Path(values["signs"]), after=Path(values["after"])
        )

    def concerns(self, rank: int) -> bool:
        """Say whether a rank has the fault."""
        return self.rank is None or self.rank == rank

    def note_rank(self, rank: int) -> None:
        """Tell the program the process of a rank."""
        (self.signs / f"rank-{rank}").write_text(str(os.getpid()))

    def process_of(self, rank: int) -> int | None:
        """Return the process of a rank, the last that has told it; None if none has."""
        try:
            return int((self.signs / f"rank-{rank}").read_text())
        except (OSError, ValueError):  # it may be written at this moment
            return None

    def fire(self, **what: Any) -> None:
        """Tell the program that the fault is there; from then on it does not come again."""
        with replacing(self.signs / _FIRED, error=None, durable=False) as stream:
            stream.write(json.dumps(what).encode())

    def fired(self) -> dict[str, Any] | None:
        """Return what `fire` was told; None before."""
        try:
            said: dict[str, Any] = json.loads((self.signs / _FIRED).read_text())
        except FileNotFoundError:
            return None
        return said

    def note_clock(self) -> None:
        """Tell the program that something has read a clock that was moved."""
        (self.signs / _READ).touch()

    def is_met(self) -> bool:
        """Say whether the training has to do with the fault: a clock that was moved must have been read."""
        return self.kind is not Kind.CLOCK or (self.signs / _READ).exists()

    def open_gate(self) -> None:
        """Let a rank that waits at the gate go on."""
        (self.signs / _OPEN).touch()

    def is_open(self) -> bool:
        """Say whether the gate is open."""
        return (self.signs / _OPEN).exists()
