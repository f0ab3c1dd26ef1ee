"""A command whose wait has a limit, and of which nothing is left afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PERIOD = 0.01
"""Seconds between two looks at a process or a file."""

_FADING = 3.0
"""Seconds that the processes of a command have to end after it, and a killed one has to be gone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """End of a command.

    Attributes:
        exit_code: negative for a signal; None if it did not end within its limit, and was killed.
        output: both streams.
        seconds: from its start on.
        left: processes that it left behind, which were killed.
    """

    exit_code: int | None
    output: str
    seconds: float
    left: tuple[int, ...] = ()


class BoundedCommand:
    """A running command with the processes that it starts, in a session of its own; killed on leaving the context.

    Attributes:
        process: the command itself.
        is_seen: whether its processes can be found by their mark (/proc).
    """

    def __init__(self, words: Sequence[str], *, folder: Path, environment: Mapping[str, str], output: Path) -> None:
        """Start it.

        Args:
            words: the command.
            folder: its working directory.
            environment: all of its variables.
            output: file for both streams; also the mark by which its processes are found, in a variable.
        """
        self._output = output
        self._begun = time.monotonic()
        with output.open("wb") as stream:
            self.process = subprocess.Popen(
                words,
                cwd=folder,
                env={**environment, _MARK: str(output)},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.is_seen = self._can_be_seen()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._kill()

    def text(self) -> str:
        """Return the output by now."""
        return self._output.read_text(errors="replace")

    def runs(self) -> bool:
        """Say whether it has not ended."""
        return self.process.poll() is None

    def wait(self, seconds: float) -> End:
        """Wait for its end at most so many seconds from its start; then it is killed, with all that it started."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, self._begun + seconds - time.monotonic()))
        code, took = self.process.poll(), time.monotonic() - self._begun
        left = () if code is None else self._lasting()
        self._kill()
        return End(exit_code=code, output=self.text(), seconds=took, left=left)

    def members(self) -> list[int]:
        """Return the processes that it has started and that still run, itself included, by its mark."""
        return [process for process in _processes() if _has_mark(process, str(self._output))]

    def has(self, process: int) -> bool:
        """Say whether a process that somebody has named is one of this command; unseen, the leader of a session."""
        if self.is_seen:
            return self._shows(process)
        with suppress(OSError):
            return os.getsid(process) == process
        return False

    def kill_group(self, leader: int) -> None:
        """Kill a process that cannot be seen, and the group that it leads."""
        if not self.is_seen and self.has(leader):
            with suppress(OSError):
                os.killpg(leader, signal.SIGKILL)

    def _can_be_seen(self) -> bool:
        """Say whether it is found by its mark, or has ended."""
        return self._shows(self.process.pid) or not self.runs()

    def _shows(self, process: int) -> bool:
        """Say whether a process is found by its mark; its variables cannot be read for a moment after its start."""
        deadline = time.monotonic() + _FADING
        while process not in self.members() and self.runs():
            if time.monotonic() > deadline:
                return False
            time.sleep(PERIOD)
        return process in self.members()

    def _lasting(self) -> tuple[int, ...]:
        """Return what still runs a little after the end."""
        deadline = time.monotonic() + _FADING
        while (members := self.members()) and time.monotonic() < deadline:
            time.sleep(PERIOD)
        return tuple(members)

    def _kill(self) -> None:
        """Kill what runs; a process that is just being started is found at the second look."""
        self.kill_group(self.process.pid)
        if self.runs():
            self.process.kill()
            with suppress(subprocess.TimeoutExpired):  # it waits for a disk that does not answer
                self.process.wait(_FADING)
        deadline = time.monotonic() + _FADING
        while (members := self.members()) and time.monotonic() < deadline:
            for member in members:
                with suppress(ProcessLookupError):
                    os.kill(member, signal.SIGKILL)
            time.sleep(PERIOD)


_MARK = "PRETRAIN_CHAOS_COMMAND"


def _processes() -> list[int]:
    """Return all processes; none where the system does not show them (/proc)."""
    with suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208  names alone
    return []


def _has_mark(process: int, mark: str) -> bool:
    """Say whether a process was started with the mark, and is no zombie, whose variables are empty."""
    try:
        variables = Path(f"/proc/{process}/environ").read_bytes()
    except OSError:  # it has ended, or is another user's
        return False
    return f"{_MARK}={mark}".encode() in variables.split(b"\0")
