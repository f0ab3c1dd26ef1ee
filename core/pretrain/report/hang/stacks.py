"""Python stacks of all threads of this process, as plain values."""

from __future__ import annotations

import linecache
import sys
import threading
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_MOST_FRAMES = 60


@dataclass(frozen=True, slots=True)
class Frame:
    """One call in a stack.

    Attributes:
        file: its path below the folder that Python imports from: "pretrain/data/prefetch.py".
        line: number in the file.
        function: name.
        source: text of the line, of the innermost call alone.
    """

    file: str
    line: int
    function: str
    source: str = ""

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


CHECKPOINT, _SAVES = "checkpoint", "checkpoint/writing/background.py"
"""Thread that writes a checkpoint, and the file whose calls in the main thread wait for it."""


def stacks_of_all_threads() -> list[Stack]:
    """Return the stacks of the other threads, that of the training first; that of the caller is left out.

    The training is in the main thread, or in the one that it waits for: autograd's, or that of a checkpoint.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main, own = threading.main_thread().ident, threading.get_ident()
    frames = sys._current_frames()  # noqa: SLF001  the only way to see other threads
    order = sorted((ident for ident in frames if ident != own), key=lambda ident: (ident != main, ident))
    return training_first([Stack(names.get(ident, _FOREIGN), _frames(frames[ident])) for ident in order])


def training_first(stacks: list[Stack]) -> list[Stack]:
    """Return the stacks with those that the main thread waits for before its own, which comes first otherwise."""
    if stacks and any(frame.file.endswith(_SAVES) for frame in stacks[0].frames):
        return sorted(stacks, key=lambda stack: stack.thread != CHECKPOINT)
    if not (stacks and stacks[0].frames and _BACKWARD in stacks[0].frames[0].source):
        return stacks
    autograd = [stack for stack in stacks[1:] if stack.thread == _FOREIGN or stack.thread.startswith("Dummy-")]
    return [*autograd, *(stack for stack in stacks if stack not in autograd)]


def _frames(innermost: FrameType) -> tuple[Frame, ...]:
    found: list[Frame] = []
    frame: FrameType | None = innermost
    while frame is not None and len(found) < _MOST_FRAMES:
        code, line = frame.f_code, frame.f_lineno or 0
        source = "" if found else linecache.getline(code.co_filename, line).strip()
        found.append(Frame(_short(code.co_filename), line, code.co_name, source))
        frame = frame.f_back
    return tuple(found)


@lru_cache(maxsize=1024)
def _short(file: str) -> str:
    """Return a path below the longest folder of Python's search path that holds it."""
    folders = [folder for folder in sys.path if folder and file.startswith(folder.rstrip("/") + "/")]
    if not folders:
        return Path(file).name
    return file[len(max(folders, key=len).rstrip("/")) + 1 :]
