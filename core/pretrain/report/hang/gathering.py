"""Collects the ranks' states in a folder, since the network may hang; one rank writes the report.

A rank is asked by SIGUSR1, or by a folder that another rank makes.
"""

from __future__ import annotations

import os
import select
import signal
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from pretrain.atomic_files import replacing
from pretrain.report.hang.diagnosis import full_report, report
from pretrain.report.hang.rank_state import ENDED, STOPPED, RankState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from types import FrameType

    from pretrain.report.hang.rank_state import RankProcess

    Headline = Callable[[Mapping[int, RankState]], str]
    Publish = Callable[[str, Mapping[int, RankState]], None]


REPORT = "report.txt"
_CLAIMED, _CLAIMED_NEXT = "claimed", "claimed-next"
"""Files of the rank that has begun the report, and of the one that takes over if it does not finish."""
_TOLD = "told"  # file of the one of the two that publishes it: the first may be slow, not dead
_WRITERS, _ANSWERS = "rank-", "answer-"
"""Prefixes of the files of ranks that may write the report, and of those that only give their state."""
_TURN = 1.5  # seconds by which each rank waits longer for a report than the rank before it
_CANDIDATES = 5  # ranks that poll the folder; the others would only repeat the same long listing
_FEW = 32  # so many ranks may all list the folder; of more, every 32nd does


@dataclass(frozen=True, slots=True)
class Gathering:
    """One gathering of states in a folder below the run directory, which all nodes share."""

    folder: Path
    rank: int
    processes: Mapping[int, RankProcess]

    def ask(self) -> None:
        """Ask all ranks for their states."""
        self.folder.mkdir(parents=True, exist_ok=True)

    def answer(self, state: RankState) -> None:
        """Write this rank's state for the rank that writes the report; too late if there is one."""
        if not self._has(REPORT):
            self._write_state(_ANSWERS, state)

    def write_report(
        self, state: RankState, head: Headline, patience: float, publish: Publish = lambda _text, _states: None
    ) -> bool:
        """Write this rank's state, wait `patience` seconds for others', and write the report unless a lower rank does.

        `publish` takes text and states before the file says that there is a report. Returns whether this rank wrote it.
        """
        if self._has(REPORT):
            return False
        self._write_state(_WRITERS, state)
        before = self._wait_for_all(patience) if self._looks_at_once else _CANDIDATES
        longer = patience if before >= _CANDIDATES else 0.0  # it has not waited for the others
        self._wait_for(self._is_taken, longer + min(before, _CANDIDATES) * _TURN)
        return not self._is_taken() and self._claim(_CLAIMED) and self._write(head, publish)

    @property
    def _looks_at_once(self) -> bool:
        """Whether this rank lists who has answered; of many ranks a few, since the listing is as long as the world."""
        return len(self.processes) <= _FEW or self.rank % _FEW == 0

    def take_over(self, head: Headline, publish: Publish) -> bool:
        """Write the report that another rank has begun and does not finish; return whether this rank has."""
        is_told = self._has(REPORT) or self._has(_TOLD)
        return not is_told and self._claim(_CLAIMED_NEXT) and self._write(head, publish)

    def writer(self) -> str:
        """Return the name of the rank that has begun the report."""
        for name in (_TOLD, _CLAIMED_NEXT, _CLAIMED):
            with suppress(OSError):
                return f"rank {(self.folder / name).read_text()}"
        return "another rank"

    def _write(self, head: Headline, publish: Publish) -> bool:
        """Publish and write the report unless another rank was faster; return whether this one did."""
        states = self._states()
        if not self._claim(_TOLD):  # after the states are read: a writer that was faster removes them
            return False
        publish(report(head(states), states, self.processes, self.folder / REPORT), states)
        with replacing(self.folder / REPORT, error=None, durable=False) as stream:
            stream.write(full_report(head(states), states, self.processes).encode())
        self._remove_states()
        return True

    def wait_for_report(self, patience: float) -> bool:
        """Wait until the report is there; return False if it is not within `patience` seconds."""
        return self._wait_for(lambda: self._has(REPORT), patience)

    def _wait_for(self, happens: Callable[[], bool], patience: float) -> bool:
        deadline = time.monotonic() + patience
        while not happens():
            if time.monotonic() > deadline:
                return False
            time.sleep(self._period)
        return True

    @property
    def _period(self) -> float:
        return max(0.1, len(self.processes) / 1000)  # all ranks ask one file system

    def _has(self, name: str) -> bool:
        try:
            return (self.folder / name).exists()
        except OSError:  # a file server that was away for a moment
            return False

    def _is_taken(self) -> bool:
        return self._has(REPORT) or self._has(_CLAIMED)

    def _write_state(self, beginning: str, state: RankState) -> None:
        with replacing(self.folder / f"{beginning}{self.rank}.json", error=None, durable=False) as stream:
            stream.write(state.to_json().encode())

    def _wait_for_all(self, patience: float) -> int:
        """Wait for the ranks that may still answer; return how many lower ones may write the report."""
        deadline = time.monotonic() + patience
        while True:
            there = list(self._there())
            before = sum(beginning == _WRITERS and rank < self.rank for beginning, rank in there)
            if before >= _CANDIDATES or not self._awaits({rank for _, rank in there}):
                return before
            if self._is_taken() or time.monotonic() > deadline:
                return before
            time.sleep(self._period)

    def _awaits(self, there: set[int]) -> bool:
        """Return whether a rank is missing that may still answer: not one that ended on this host or is stopped."""
        missing = self.processes.keys() - there
        return any(self.processes[rank].state() not in {ENDED, STOPPED} for rank in missing)

    def _there(self) -> Iterator[tuple[str, int]]:
        for name in os.listdir(self.folder):  # noqa: PTH208  a thousand names
            beginning, dash, rest = name.partition("-")
            if rest.endswith(".json") and beginning + dash in {_WRITERS, _ANSWERS}:
                yield beginning + dash, int(rest.removesuffix(".json"))

    def _claim(self, name: str) -> bool:
        try:
            with (self.folder / name).open("x") as stream:
                stream.write(str(self.rank))
        except FileExistsError:
            return False
        if not self._has(REPORT):
            return True
        with suppress(OSError):  # its writer has taken back the claims before this one
            (self.folder / name).unlink()
        return False

    def _states(self) -> dict[int, RankState]:
        states: dict[int, RankState] = {}
        for beginning, rank in sorted(self._there()):  # answers first: a rank that wrote both has hung since
            with suppress(OSError, ValueError, LookupError, TypeError):  # one that cannot be read counts as no answer
                states[rank] = RankState.from_json((self.folder / f"{beginning}{rank}.json").read_text())
        return states

    def _remove_states(self) -> None:
        with suppress(OSError):
            for beginning, rank in self._there():
                (self.folder / f"{beginning}{rank}.json").unlink(missing_ok=True)
            for name in (_TOLD, _CLAIMED_NEXT, _CLAIMED):
                (self.folder / name).unlink(missing_ok=True)


def request_folder(folder: Path, number: int) -> Path:
    """Return the folder of an answer to SIGUSR1, beside that of the hang report."""
    return folder.with_name(f"{folder.name}-asked-{number}")


def next_request_folder(folder: Path, patience: float) -> Path:
    """Return the folder for an answer to SIGUSR1: one that ranks began within `patience` seconds, or a new one."""
    number = len(list(folder.parent.glob(f"{folder.name}-asked-*")))
    latest = request_folder(folder, number)
    if number and not (latest / REPORT).exists() and _now_in(latest) - latest.stat().st_mtime < patience:
        return latest
    return request_folder(folder, number + 1)


def _now_in(folder: Path) -> float:
    """Return the time by the clock of the file system, which may be another machine's."""
    with tempfile.NamedTemporaryFile(dir=folder.parent, prefix=".now-") as stream:
        return os.fstat(stream.fileno()).st_mtime


_STOP = b"\0"


class ReportRequests:
    """Catches SIGUSR1; a context, entered in the main thread, that restores the handler before.

    Python runs a signal's handler in the main thread, which may hang. But it writes the signal's number to a file
    descriptor at once (`signal.set_wakeup_fd`), and another thread reads it there.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        os.set_blocking(self._read, False)
        self._poll = select.poll()  # select.select takes no descriptor above 1023
        self._poll.register(self._read, select.POLLIN)
        self._before: Any = None
        self._wakeup_before: int | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            self._before = signal.signal(signal.SIGUSR1, _note)
            signal.siginterrupt(signal.SIGUSR1, False)  # no system call of a library fails by it
        return self

    def __exit__(self, *_error: object) -> None:
        if self._wakeup_before is not None:
            if self._before is not None:  # else it was set by C code, which Python cannot give back
                signal.signal(signal.SIGUSR1, self._before)
            signal.set_wakeup_fd(self._wakeup_before)
            self._wakeup_before = None

    def wait(self, seconds: float) -> bool | None:
        """Wait for a request; return True for one, False for none within the time, None after `stop`."""
        self._poll.poll(1000 * seconds)
        try:
            arrived = os.read(self._read, 4096)
        except BlockingIOError:
            return False
        if _STOP in arrived:
            return None
        return bytes([signal.SIGUSR1]) in arrived

    def stop(self) -> None:
        """Let `wait` return None, in whatever thread it is."""
        with suppress(BlockingIOError):  # a full pipe wakes it too
            os.write(self._write, _STOP)

    def close(self) -> None:
        """Close the pipe; nobody waits any more."""
        os.close(self._read)
        os.close(self._write)


def _note(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the number is in the pipe already."""


class Questions:
    """Finds folders in which another rank asks for all states, because of a hang or by SIGUSR1.

    A thread of its own looks for them: a disk that does not answer must not keep the watch from ending its rank.
    """

    def __init__(self, folder: Path, period: float, answer: Callable[[Path], None]) -> None:
        """Look every `period` seconds; `folder` exists once a rank hangs, those of SIGUSR1 are beside it."""
        self._folder, self._period, self._answer = folder, period, answer
        self._hang, self._end = threading.Event(), threading.Event()
        self._number = 0  # of the latest folder beside it
        self._own: set[Path] = set()
        self._answered = float("-inf")
        self._thread = threading.Thread(target=self._look, name="hang questions", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Stop looking, without waiting for the disk."""
        self._end.set()

    @property
    def asks_of_hang(self) -> bool:
        """True once a rank has asked because of a hang."""
        return self._hang.is_set()

    def ignore(self, folder: Path) -> None:
        """Do not answer in a folder in which this rank asks itself."""
        self._own.add(folder)

    def answered_within(self, seconds: float) -> bool:
        """Return whether another rank's SIGUSR1 was answered in the last so many seconds."""
        return time.monotonic() - self._answered < seconds

    def _look(self) -> None:
        while not self._end.wait(self._period):
            with suppress(Exception):  # a file server that was away for a moment; it looks again soon
                self._look_once()

    def _look_once(self) -> None:
        if not self._hang.is_set() and self._folder.exists():
            self._hang.set()
            self._answer(self._folder)
        following = request_folder(self._folder, self._number + 1)
        if not following.exists():
            return
        self._number += 1
        if following not in self._own:
            self._answered = time.monotonic()
            self._answer(following)
