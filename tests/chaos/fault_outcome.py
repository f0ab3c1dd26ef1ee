"""The course of a training with a fault, as it was seen from outside."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chaos.bounded_command import End
    from chaos.scene import Logged

_STEP = re.compile(r"^iteration\s+(\d+)/\d+ ", re.MULTILINE)
_RESTART = re.compile(r"^restart \d+ of \d+", re.MULTILINE)


def restarts_of(end: End) -> int:
    """Return the number of restarts of a command's launcher."""
    return len(_RESTART.findall(end.output))


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultOutcome:
    """Course of a training, from its first command to its last.

    Attributes:
        came: whether the fault came while the training ran.
        ends: of the commands, in the order in which they were given.
        others: ends of the commands of other nodes that nothing was done to.
        killed: ends of those of other nodes that were killed.
        before: iterations of the complete checkpoints when the fault came.
        states: after each of `ends`: damage of every complete checkpoint by iteration, "" of an intact one.
        logged: of the whole training.
        flaws: further things that must not be at the end.
        seen: whether processes that a command has left behind could be seen.
    """

    came: bool
    ends: tuple[End, ...]
    others: tuple[End, ...] = ()
    killed: tuple[End, ...] = ()
    before: tuple[int, ...] = ()
    states: tuple[Mapping[int, str], ...] = ()
    logged: Logged = ()
    flaws: tuple[str, ...] = ()
    seen: bool = True

    @property
    def left(self) -> tuple[int, ...]:
        """Processes that were left behind."""
        return tuple(process for end in (*self.ends, *self.others, *self.killed) for process in end.left)

    @property
    def restarts(self) -> int:
        """Restarts by the launchers."""
        return sum(map(restarts_of, self.ends))

    @property
    def repeated(self) -> int:
        """Logged iterations that were done more than once."""
        steps = [step for end in self.ends for step in _STEP.findall(end.output)]
        return len(steps) - len(set(steps))

    @property
    def seconds(self) -> float:
        """Time of all commands."""
        return sum(end.seconds for end in self.ends)
