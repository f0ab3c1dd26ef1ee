"""Finds the collective in which a rank's main thread waits, by its stack and the communication library's record."""

from __future__ import annotations

import linecache
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.plugins.collective_record import BESIDE, NO_PEER, CalledCollective

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType


PIPELINE = "PIPELINE_MODEL_PARALLEL_GROUP"
"""megatron-core's description of the group whose neighbours are the stages before and after."""

_WRITING = "checkpoint/agreement.py"
_DISTRIBUTED = "torch/distributed/"
_LIBRARIES = ("torch/", "megatron/")
_MESSAGES, _SCHEDULES = "pipeline_parallel/p2p_communication.py", "pipeline_parallel/schedules.py"
_WAITS = ("wait(", "synchronize(", ".item()", ".tolist()", ".cpu()", ".to(", "run_backward(")
"""What a line of Python holds that waits for a device, or for a collective that was called before. While the backward
pass runs in autograd's own thread that thread's stack counts (`stacks`), if Python runs in it."""


def awaited(
    frames: Sequence[Frame],
    called: Sequence[CalledCollective],
    rank: int,
    groups: Mapping[str, tuple[int, ...]],
    *,
    seconds: float,
    since: float,
) -> CalledCollective | None:
    """Return the collective in which the main thread waits; None if it waits in none.

    `frames` are the main thread's, the innermost first; `called` is what the library knows, oldest first. `seconds` ago
    it moved last: `since`, in seconds since the epoch, by the clock of `called` (setting that later changes nothing).
    """
    if not frames:
        return None
    beside = [each for each in called if each.pending and each.group == BESIDE]
    pending = [each for each in called if each.pending and each.group != BESIDE]
    if beside and any(frame.file.endswith(_WRITING) for frame in frames):  # the thread that writes a checkpoint
        pending = beside
    operation = _stage_message(frames)
    if operation:
        recorded = [each for each in pending if each.is_message]
        return _message(operation, recorded, rank, groups.get(PIPELINE, ()), since)
    if not pending:
        return None
    if frames[0].file.startswith(_DISTRIBUTED):
        latest = pending[-1]  # waited for at once
        return latest if latest.operation else replace(latest, operation=frames[0].function)
    if any(word in frames[0].source for word in _WAITS):
        return pending[0]
    # A device whose queue is full blocks the main thread at any line, by a collective called before it stopped.
    oldest = next((each for each in pending if each.library not in {"gloo", ""}), None)
    return oldest if oldest is not None and seconds >= _QUIET and oldest.called <= since + _QUIET else None


_QUIET = 2.0  # seconds


def _message(
    operation: str, recorded: Sequence[CalledCollective], rank: int, stages: tuple[int, ...], since: float
) -> CalledCollective | None:
    """Return the latest recorded message, with its other rank, which some libraries do not record."""
    if not recorded:
        return _unrecorded(operation, rank, stages, since)
    latest = recorded[-1]
    if latest.peer != NO_PEER:
        return latest
    told = _unrecorded(operation, rank, stages, since)
    return latest if told is None else replace(told, shapes=latest.shapes, dtype=latest.dtype, called=latest.called)


def _stage_message(frames: Sequence[Frame]) -> str:
    """Return megatron-core's name of the message between stages that the main thread waits for; "" if there is none."""
    if not frames[0].file.startswith(_LIBRARIES):
        return ""
    if any(frame.file.endswith(_MESSAGES) for frame in frames):
        return next((frame.function for frame in frames if frame.function in _PEERS), "")
    if frames[0].file.endswith(_SCHEDULES) and "wait(" in frames[0].source:
        return next((name for name in _HANDLES if name in frames[0].source), "")
    return ""


def _unrecorded(operation: str, rank: int, stages: tuple[int, ...], since: float) -> CalledCollective | None:
    """Return a message that gloo, which records none, is busy with; it begins right after a movement."""
    if rank not in stages:
        return None
    place = stages.index(rank) + (_PEERS | _HANDLES)[operation]
    return replace(_MESSAGE, operation=operation, ranks=stages, peer=stages[place % len(stages)], called=since)


_MESSAGE = CalledCollective(
    operation="", library="", group=PIPELINE, ranks=(), number=0, is_message=True, pending=True, called=0.0
)
_PEERS = {
    "recv_forward": -1,
    "send_backward": -1,
    "send_backward_recv_forward": -1,
    "recv_backward": 1,
    "send_forward": 1,
    "send_forward_recv_backward": 1,
    # The interleaved schedule sends to one side and takes from the other: it waits for what it takes.
    "send_forward_recv_forward": -1,
    "send_backward_recv_backward": 1,
    "send_forward_backward_recv_forward_backward": -1,
}
"""megatron-core's calls between stages -> the stage that is waited for, by its distance."""
_HANDLES = {"recv_prev": -1, "send_prev": -1, "recv_next": 1, "send_next": 1}
"""Names of what its interleaved schedule waits for later -> the same."""


_PATIENCE = 3.0


class CalledCollectives:
    """Reads a communication library's record in a thread, since the library may hang; one reading at a time."""

    def __init__(self, recent: Callable[[], Sequence[CalledCollective]]) -> None:
        self._recent = recent
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._found: list[Sequence[CalledCollective]] = []  # by the latest reading

    def latest(self) -> list[CalledCollective]:
        """Return the latest collectives, oldest first; none if the library does not answer within seconds, or fails."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._found = []
                self._thread = threading.Thread(
                    target=self._read, args=(self._found,), name="flight recorder", daemon=True
                )
                self._thread.start()
            thread, found = self._thread, self._found
        thread.join(_PATIENCE)
        return sorted((each for calls in found for each in calls), key=lambda each: each.called)

    def _read(self, found: list[Sequence[CalledCollective]]) -> None:
        with suppress(Exception):  # the stacks of a rank are worth a report without it
            found.append(self._recent())


_MOST_FRAMES = 60


@dataclass(frozen=True, slots=True)
class Frame:
    """One call in a stack."""

    file: str  # below the folder that Python imports from: "pretrain/data/prefetch.py"
    line: int
    function: str
    source: str = ""  # text of the line, of the innermost call alone

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}"


@dataclass(frozen=True, slots=True)
class Stack:
    """The stack of one thread, the innermost call first."""

    thread: str
    frames: tuple[Frame, ...]


_FOREIGN = "a thread that Python did not start"
_BACKWARD = "run_backward("
"""In the line of the main thread while autograd works for it: in a thread of its own for each device but the CPU."""


CHECKPOINT, _SAVES = "checkpoint", "checkpoint/background.py"
"""Thread that writes a checkpoint, and the file whose calls in the main thread wait for it."""
_TREE, _AGREEMENT = "pretrain/collectives.py", "agreement"
"""File whose `wait` waits for a reduction over a tree, and the thread in which that goes on."""


def all_stacks() -> list[Stack]:
    """Return the stacks of all other threads, that of the training first: the main thread's, or one it waits for."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main, own = threading.main_thread().ident, threading.get_ident()
    frames = sys._current_frames()  # noqa: SLF001  the only way to see other threads
    order = sorted((ident for ident in frames if ident != own), key=lambda ident: (ident != main, ident))
    return training_first([Stack(names.get(ident, _FOREIGN), _frames(frames[ident])) for ident in order])


def training_first(stacks: list[Stack]) -> list[Stack]:
    """Return the stacks with those of threads that the main thread waits for before its own."""
    if stacks and any(frame.file.endswith(_SAVES) for frame in stacks[0].frames):
        return sorted(stacks, key=lambda stack: stack.thread != CHECKPOINT)
    if stacks and any(frame.file.endswith(_TREE) and frame.function == "wait" for frame in stacks[0].frames):
        return sorted(stacks, key=lambda stack: stack.thread != _AGREEMENT)
    if not (stacks and stacks[0].frames and _BACKWARD in stacks[0].frames[0].source):
        return stacks
    autograd = [stack for stack in stacks[1:] if stack.thread == _FOREIGN or stack.thread.startswith("Dummy-")]
    return [*autograd, *(stack for stack in stacks if stack not in autograd)]


def _frames(innermost: FrameType) -> tuple[Frame, ...]:
    source = linecache.getline(innermost.f_code.co_filename, innermost.f_lineno or 0).strip()
    calls = islice(traceback.walk_stack(innermost), _MOST_FRAMES)
    first, *others = (Frame(_short(call.f_code.co_filename), line or 0, call.f_code.co_name) for call, line in calls)
    return replace(first, source=source), *others


@lru_cache(maxsize=1024)
def _short(file: str) -> str:
    """Return a path below the longest folder of Python's search path that holds it."""
    folders = [folder for folder in sys.path if folder and file.startswith(folder.rstrip("/") + "/")]
    if not folders:
        return Path(file).name
    return file[len(max(folders, key=len).rstrip("/")) + 1 :]
