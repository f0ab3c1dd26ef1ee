"""Collects the ranks' states in a folder; one rank writes the report."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.atomic_files import replacing
from pretrain.report.hang.diagnosis import full_report, report
from pretrain.report.hang.rank_state import ENDED, STOPPED, RankState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

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
        before = self._wait_for_all(patience)
        longer = patience if before >= _CANDIDATES else 0.0  # it has not waited for the others
        self._wait_for(self._is_taken, longer + min(before, _CANDIDATES) * _TURN)
        return not self._is_taken() and self._claim(_CLAIMED) and self._write(head, publish)

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
