"""Faults within a rank: what each does to the calls of one kernel."""

from __future__ import annotations

import errno
import multiprocessing
import os
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos.jumping_clock import move_clock
from chaos.planted import FAILURE, Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from chaos.planted import Planted

    Act = Callable[[Tensor], Tensor]

CALLS_OF_ITERATION = 2
"""Calls of the kernel in an iteration of the training (`tiny.yml`): its layers, times its micro-batches of a rank."""

MOMENT = 2 * CALLS_OF_ITERATION + 1
"""Calls after the checkpoint was first seen: then it is named as the latest, and two more iterations are done."""

SLOWER = 0.02
"""Seconds by which a call of a slow rank takes longer."""

JUMP = 86_400.0
"""Seconds by which the clock jumps."""

LONGEST_WAIT = 60.0
"""Seconds after which a rank at the gate goes on without the program."""

_FULL = Path("/dev/full")
"""Linux's file that can be opened, and has no room for a byte (ENOSPC)."""


def act_of(planted: Planted) -> Act:
    """Return what happens to the output of each call of the kernel, on a rank that has the fault.

    A fault that came before, in a process that has ended since, does not come again.
    """
    if planted.fired() is not None:
        return _nothing
    if planted.kind is Kind.FULL_DISK:
        fill_disk(planted)
    acts: dict[Kind, Callable[[Planted], Act]] = {
        Kind.GATE: _Gate,
        Kind.NAN: _NotANumber,
        Kind.SLOW: _Slow,
        Kind.CLOCK: _Clock,
    }
    return acts[planted.kind](planted) if planted.kind in acts else _nothing


def fill_disk(planted: Planted) -> None:
    """Let the files of every checkpoint after `planted.after` have no room, for the rest of this process.

    What is opened for writing there leads to /dev/full, so that the system itself refuses the bytes, in the writer's
    own calls.
    """
    unfinished = f"{planted.after.parent}/."

    def no_room(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(arguments[0], str | bytes):  # a descriptor is one that was opened before
            return
        path, flags = os.fsdecode(arguments[0]), arguments[2]
        if path.startswith(unfinished) and flags & (os.O_WRONLY | os.O_RDWR) and planted.after.exists():
            if flags & os.O_EXCL:  # it would meet our link, not a full disk
                planted.fire()
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            _fill(path)
            planted.fire()

    sys.addaudithook(no_room)


def without_full_disk(folder: Path) -> str:
    """Return the reason that a full disk cannot be played in a folder; "" where it can."""
    try:
        if not stat.S_ISCHR(_FULL.stat().st_mode):
            return f"{_FULL} is no device here"
        link = folder / "link"
        link.symlink_to(_FULL)
        link.unlink()
    except OSError as error:
        return f"a full disk is played by a link to {_FULL}, and {error}"
    return ""


def _fill(path: str) -> None:
    """Put a link to the full device in place of a file."""
    if not os.path.islink(path):  # noqa: PTH114  pathlib opens no file, but may be what is audited
        with suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108
        os.symlink(_FULL, path)  # noqa: PTH211


def _nothing(output: Tensor) -> Tensor:
    return output


class _Once:
    """Base of acts at a moment; `calls` counts those from the moment on."""

    def __init__(self, planted: Planted) -> None:
        self.planted = planted
        self.calls = 0
        self._left = MOMENT

    def __call__(self, output: Tensor) -> Tensor:
        if self._left and self.planted.after.exists():
            self._left -= 1
        if self._left:
            return output
        self.calls += 1
        return self.act(output)

    def act(self, output: Tensor) -> Tensor:
        """Return what the caller gets instead of the output."""
        raise NotImplementedError


class _Gate(_Once):
    def act(self, output: Tensor) -> Tensor:
        if self.calls == 1:
            self.planted.fire(workers=[worker.pid for worker in multiprocessing.active_children()])
            deadline = time.monotonic() + LONGEST_WAIT
            while not self.planted.is_open() and time.monotonic() < deadline:
                time.sleep(0.005)
        return output


class _NotANumber(_Once):
    def act(self, output: Tensor) -> Tensor:
        if self.calls > 1:
            return output
        self.planted.fire()
        return output * float("nan")


class _Slow:
    """Slow from the first call on, as a rank on a device that is worn out."""

    def __init__(self, planted: Planted) -> None:
        self._planted = planted
        self._calls = 0

    def __call__(self, output: Tensor) -> Tensor:
        self._calls += 1
        if self._calls == 1:
            self._planted.fire()
        time.sleep(SLOWER)
        return output


class _Clock(_Once):
    """A day ahead, and a failure, whose time is later than that of every other rank, which fail because of it."""

    def act(self, output: Tensor) -> Tensor:
        del output
        move_clock(JUMP, self.planted.note_clock)
        self.planted.fire()
        raise RuntimeError(FAILURE)
