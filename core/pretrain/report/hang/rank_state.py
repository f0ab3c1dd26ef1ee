"""State of one rank as plain values that go through a file, and the state of its process."""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrain.machine import machine
from pretrain.plugins.collective_record import CalledCollective
from pretrain.report.hang.awaited_collective import Frame, Stack, all_stacks, awaited
from pretrain.report.hang.position import REDUCTION, TrainingPlace, last_place, place_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pretrain.report.hang.position import Position


@dataclass(frozen=True, kw_only=True, slots=True)
class RankState:
    """State of a rank, as it reports it itself."""

    rank: int
    host: str
    pid: int  # as that host numbers it
    at: TrainingPlace
    layers: int = 0  # of its model
    seconds: float = 0.0  # since it has last moved
    error: str = ""
    waits_in: CalledCollective | None = None
    called: tuple[CalledCollective, ...] = ()  # the latest of each group, and all that are pending, oldest first
    processes: Mapping[int, str] = field(default_factory=dict)  # of this host's ranks
    last_seen: Mapping[int, str] = field(default_factory=dict)  # the last place as text, of this host's ranks
    stacks: tuple[Stack, ...] = ()  # that of the training first

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The calls of the training, the innermost first."""
        return self.stacks[0].frames if self.stacks else ()

    def to_json(self) -> str:
        """Return the state as one line."""
        groups: dict[tuple[int, ...], int] = {}  # written once each: there may be a thousand ranks in them

        def short(each: CalledCollective) -> CalledCollective:
            return replace(each, ranks=(groups.setdefault(each.ranks, len(groups)),))

        waits_in = None if self.waits_in is None else short(self.waits_in)
        values = asdict(replace(self, waits_in=waits_in, called=tuple(map(short, self.called))))
        return json.dumps({**values, "groups": list(groups)})

    @classmethod
    def from_json(cls, text: str) -> RankState:
        """Return the state of a line that `to_json` made."""
        values = json.loads(text)
        groups = [_only_one(tuple(ranks)) for ranks in values.pop("groups")]
        read = {
            "at": TrainingPlace(*values["at"]),
            "waits_in": _collective(values["waits_in"], groups) if values["waits_in"] else None,
            "called": tuple(_collective(each, groups) for each in values["called"]),
            "processes": {int(rank): state for rank, state in values["processes"].items()},
            "last_seen": {int(rank): place for rank, place in values["last_seen"].items()},
            "stacks": tuple(
                Stack(each["thread"], tuple(Frame(**one) for one in each["frames"])) for each in values["stacks"]
            ),
        }
        return cls(**values | read)


def _collective(values: dict[str, Any], groups: Sequence[tuple[int, ...]]) -> CalledCollective:
    shapes = tuple(tuple(shape) for shape in values["shapes"])
    return CalledCollective(**values | {"ranks": groups[values["ranks"][0]], "shapes": shapes})


@lru_cache(maxsize=4096)
def _only_one(ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return the same tuple for equal ones: those of a thousand states are compared often."""
    return ranks


def own_state(
    position: Position,
    *,
    identity: Mapping[str, Any],
    seconds: float,
    since: float,
    called: Sequence[CalledCollective],
    groups: Mapping[str, tuple[int, ...]],
    neighbours: Iterable[RankProcess],
) -> RankState:
    """Return the state of this rank, seen from another thread; `since` is in seconds since the epoch."""
    here = list(neighbours)
    last_seen = {each.rank: last_place(each.position) for each in here if each.position}
    stacks = all_stacks()
    # A reduction of gradients, which is inside a step, is told by the stack.
    reduces = any(frame.function in _REDUCTIONS for stack in stacks[:2] for frame in stack.frames)
    frames = stacks[0].frames if stacks else ()
    waits_in = awaited(frames, called, identity["rank"], groups, seconds=seconds, since=since)
    return RankState(
        **identity,
        at=position.place()._replace(activity=REDUCTION) if reduces else position.place(),
        seconds=round(seconds, 1),
        error=position.error,
        waits_in=waits_in,
        called=tuple(kept(called)),
        processes={each.rank: each.state() for each in here},
        last_seen={
            rank: words for rank, seen in last_seen.items() if seen and (words := place_words(seen, identity["layers"]))
        },
        stacks=tuple(stacks),
    )


_REDUCTIONS = {"finalize_model_grads", "allreduce_gradients"}  # functions of megatron-core and DeepSpeed


def kept(called: Sequence[CalledCollective]) -> list[CalledCollective]:
    """Return the latest collectives of each group, and all that are pending."""
    latest = {group_of(each): each for each in called if not each.is_message}
    near = [
        each
        for each in called
        if each.pending or (not each.is_message and each.number > latest[group_of(each)].number - _NEAR)
    ]
    return near[-_MOST_KEPT:]


_NEAR = 3
"""Collectives of each group that are kept: a rank that has left a broadcast may be one or two ahead of the others."""
_MOST_KEPT = 200


def group_of(each: CalledCollective) -> tuple[str, str, tuple[int, ...]]:
    """Return a key that is equal on all ranks of a collective's group."""
    return each.library, each.group, each.ranks


ENDED, STOPPED, BLOCKED, ALIVE = "ended", "stopped", "blocked", "alive"
UNKNOWN = ""
_LETTERS = {"T": STOPPED, "t": STOPPED, "D": BLOCKED, "Z": ENDED, "X": ENDED}  # letters of proc_pid_stat(5)


@dataclass(frozen=True, slots=True)
class RankProcess:
    """The process of one rank."""

    rank: int
    host: str
    pid: int  # as its own host numbers it
    place: str  # boot of the machine and namespace of pids; equal where ranks see each other's processes
    started: int  # in clock ticks since the boot, as pids are used again; 0 where it is not known
    position: str = ""  # path of its `pretrain.report.hang.position`; "" where there is none

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
    """Return a key of the process namespace; host names are not unique: "localhost"."""
    namespace = 0
    with suppress(OSError):
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    return f"{machine()} {namespace}"


_FOREIGN = ("torch/", "threading.py", "queue.py", "contextlib.py", "megatron/", "numpy/", "selectors.py", "deepspeed/")
"""Libraries, by their paths."""


def place(state: RankState) -> str:
    """Return the place of a state as text."""
    return place_words(state.at, state.layers)


def doing(state: RankState) -> str:
    """Return what a rank does outside of collectives: its place, its error and the line of code."""
    ended = f"after its own error, {state.error}" if state.error else ""
    return "; ".join(filter(None, (place(state), ended, str(own_frame(state) or ""))))


def own_frame(state: RankState) -> Frame | None:
    """Return the innermost call of the main thread outside of libraries; the innermost of all if there is none."""
    own = (frame for frame in state.frames if not frame.file.startswith(_FOREIGN))
    return next(own, state.frames[0] if state.frames else None)
