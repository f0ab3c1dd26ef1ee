"""State of a process on this host, by /proc."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pretrain.machine import machine

ENDED, STOPPED, BLOCKED, ALIVE = "ended", "stopped", "blocked", "alive"
UNKNOWN = ""
_LETTERS = {"T": STOPPED, "t": STOPPED, "D": BLOCKED, "Z": ENDED, "X": ENDED}
"""Letters of proc_pid_stat(5)."""


@dataclass(frozen=True, slots=True)
class RankProcess:
    """The process of one rank.

    Attributes:
        rank: of all.
        host: its name.
        pid: as its own host numbers it.
        place: boot of the machine and namespace of process numbers; two ranks see each other's processes where it is
            equal.
        started: of its start in clock ticks since the boot, since numbers are used again; 0 where it is not known.
        position: path of its `pretrain.report.hang.shared_place`; empty where there is none.
    """

    rank: int
    host: str
    pid: int
    place: str
    started: int
    position: str = ""

    @classmethod
    def own(cls, rank: int, position: str = "") -> RankProcess:
        """Return this process, of a rank whose position is read at that path."""
        host, pid = socket.gethostname(), os.getpid()
        fields = _fields(pid)
        return cls(rank, host, pid, _place(), int(fields[19]) if fields else 0, position)

    def state(self) -> str:
        """Return `ENDED`, `STOPPED`, `BLOCKED` (uninterruptible), `ALIVE`; `UNKNOWN` from another host."""
        if self.place != _place() or not self.started:
            return UNKNOWN
        fields = _fields(self.pid)
        if not fields or int(fields[19]) != self.started:
            return ENDED
        return _LETTERS.get(fields[0], ALIVE)


def _fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on, the state; empty where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # the second field, a name in parentheses, may hold anything


def _place() -> str:
    """Return what processes share that see each other; host names alone are equal on many machines: "localhost"."""
    namespace = 0
    with suppress(OSError):
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    return f"{machine()} {namespace}"
