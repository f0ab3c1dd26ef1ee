"""Watches a rank's main thread, and reports when it hangs or on SIGUSR1."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from pretrain.exit_codes import ExitCode
from pretrain.plugins.collective_record import BESIDE, process_groups
from pretrain.report.hang.awaited_collective import CalledCollectives
from pretrain.report.hang.diagnosis import full_report
from pretrain.report.hang.gathering import REPORT, Gathering, Questions, ReportRequests, next_request_folder
from pretrain.report.hang.position import BETWEEN, END, FORWARD_BACKWARD, STEP, TASKS
from pretrain.report.hang.rank_state import own_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pretrain.plugins.collective_record import CalledCollective
    from pretrain.report.hang.position import Position
    from pretrain.report.hang.rank_state import RankProcess, RankState


_ASKED = "positions of the ranks (SIGUSR1):"
_PATIENCE = 5.0  # seconds that other ranks have to write their states
_SAME_SIGNAL = 2.0  # seconds within which SIGUSR1 to several ranks counts as one request
_LOOK_AGAIN = 5.0  # seconds between two readings of the whole flight recorder; fewer near the limit
_LONGEST_END = 20.0
"""Seconds, besides those for the other ranks, after which a hanging rank ends without a report, if its disk hangs."""
_WRITING, _FOR_EACH_RANK = 6.0, 0.05
"""Seconds to write a report once it is begun, and more for each rank whose state is read."""
_BEYOND = 10.0  # seconds after that, if it cannot even print
_AFTER_REPORT = 1.5  # seconds for the cause to reach the launcher of another node
_SUSPENDED = 2.0  # the watch itself was stopped if it is late by so many seconds; a pause is not a hang


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """A rank to watch."""

    position: Position
    limit: HangLimit
    rank: int
    layers: int
    processes: Mapping[int, RankProcess]
    folder: Path  # where reports of this start of the run go; shared by all ranks
    recent: Callable[[], Sequence[CalledCollective]]  # asks the communication library for its latest collectives
    tell_launcher: Callable[[str, bool], None] | None


class HangWatch:
    """A thread that checks that the main thread moves; a context, entered by the main thread."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._requests = ReportRequests()
        self._thread = threading.Thread(target=self._watch, name="hang watch", daemon=True)
        self._answer_to_signal: threading.Thread | None = None
        given = watched.limit.given
        size = len(watched.processes)
        self._period = min(given / 8, 1.0) if given else 1.0
        look_again = max(self._period, size / 200)  # all ranks ask one file system
        self._questions = Questions(
            watched.folder, look_again, lambda folder: self._gathering(folder).answer(self._look(self._quiet()))
        )
        self._quiet_long = min(given / 3, 2.0) if given else 2.0
        self._patience = _PATIENCE + 2 * look_again
        self._writing = _WRITING + _FOR_EACH_RANK * size
        self._longest = _LONGEST_END + 2 * self._patience + 2 * self._writing
        self._called = CalledCollectives(watched.recent)
        self._told = False
        self._beats, self._since, self._moved_at = -1, 0.0, 0.0
        self._next_look = float("-inf")

    def __enter__(self) -> Self:
        self._requests.__enter__()
        self._since, self._moved_at = time.monotonic(), time.time()
        self._thread.start()
        self._questions.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._requests.__exit__()
        self._requests.stop()
        self._questions.stop()
        self._thread.join(1.0)
        if not self._thread.is_alive():  # else it puts a report together
            self._requests.close()

    def _watch(self) -> None:
        before = time.monotonic()
        while (asked := self._requests.wait(self._period)) is not None:
            late = time.monotonic() - before - self._period
            if late > _SUSPENDED:  # the whole run was stopped, or this process: that is no hang
                # The moment too, or the pause would count as work before a wait. Of a pause within a wait as much
                # counts as there was work before it: less than for the timeout of the collectives, which goes on.
                self._since, self._moved_at = self._since + late, self._moved_at + late
            with suppress(Exception):  # the watch must go on
                self._turn(is_asked=asked)
            before = time.monotonic()

    def _turn(self, *, is_asked: bool) -> None:
        """Check that the main thread has moved; never wait for the disk, which may be what hangs."""
        position, limit = self._watched.position, self._watched.limit
        if is_asked:
            self._answer_signal()
        if position.beats != self._beats:
            self._beats, self._since, self._moved_at = position.beats, time.monotonic(), time.time()
            return
        quiet = self._quiet()
        if quiet < self._quiet_long or limit.is_off:
            return
        # At its end a rank has nothing to do with what others hang in: it writes what is left.
        joins = self._questions.asks_of_hang and position.activity != END
        if joins or limit.exceeded(position, quiet, lambda: self._waited(quiet)):
            self._end(quiet)

    def _waited(self, quiet: float) -> float:
        """Return how long the main thread has waited in a collective; 0 too if it was checked a moment ago."""
        now = time.monotonic()
        if now < self._next_look:
            return 0.0
        waits_in = self._look(quiet).waits_in
        # Both by the clock of the time of day, and before this: setting it now changes nothing.
        # A checkpoint's thread waits for the slowest writer, and ranks for lm-eval on rank 0, longer than others may.
        counts = waits_in is not None and waits_in.group not in {BESIDE, TASKS}
        waited = quiet - max(0.0, waits_in.called - self._moved_at) if waits_in is not None and counts else 0.0
        self._next_look = now + min(_LOOK_AGAIN, self._watched.limit.longest_wait - waited)
        return waited

    def _quiet(self) -> float:
        return max(0.0, time.monotonic() - self._since)

    def _look(self, seconds: float) -> RankState:
        watched = self._watched
        own = watched.processes[watched.rank]
        return own_state(
            watched.position,
            identity={"rank": watched.rank, "host": own.host, "pid": own.pid, "layers": watched.layers},
            seconds=seconds,
            since=self._moved_at,
            called=self._called.latest(),
            groups=process_groups(),
            neighbours=[each for each in watched.processes.values() if each.place == own.place],
        )

    def _gathering(self, folder: Path) -> Gathering:
        return Gathering(folder, self._watched.rank, self._watched.processes)

    def _answer_signal(self) -> None:
        """Answer SIGUSR1 in a thread, unless another rank's same request was just answered."""
        is_busy = self._answer_to_signal is not None and self._answer_to_signal.is_alive()
        if not is_busy and not self._questions.answered_within(_SAME_SIGNAL):
            self._answer_to_signal = threading.Thread(target=self._show, name="SIGUSR1", daemon=True)
            self._answer_to_signal.start()

    def _show(self) -> None:
        """Print the states of all ranks, or let another rank do it; the training continues."""
        with suppress(Exception):  # whatever it is, the training must not end by it
            folder = next_request_folder(self._watched.folder, self._patience)
            self._questions.ignore(folder)
            gathering = self._gathering(folder)
            gathering.ask()
            state = self._look(self._quiet())
            gathering.write_report(state, lambda _states: _ASKED, self._patience, lambda text, _states: _print(text))

    def _end(self, seconds: float) -> None:
        """Report together with the other ranks, and end this process."""
        _leave_after(self._longest + _BEYOND)
        self._questions.stop()
        head = _hanging(self._watched.rank, seconds)
        try:
            state = self._look(seconds)
            problem = self._gathered(state)
            if problem and self._told:
                _print(f"{self._watched.folder / REPORT} is not there: {problem}")
            elif problem:  # then this rank speaks for itself
                alone = {state.rank: self._watched.processes[state.rank]}
                self._tell(f"{full_report(head, {state.rank: state}, alone)}no answer from the other ranks: {problem}")
        except Exception as error:  # noqa: BLE001  whatever it is, this rank must end
            self._tell(f"{head}\nNo report could be written: {error!r}")
        finally:
            _leave()

    def _gathered(self, state: RankState) -> str:
        """Publish the report in bounded time; return why there is none, or an empty string."""
        problems = [f"the disk of {self._watched.folder} does not answer"]

        def gather() -> None:
            try:
                problems[0] = self._gather(state)
            except Exception as error:  # noqa: BLE001  a full disk, or one that is gone
                problems[0] = str(error) or repr(error)

        thread = threading.Thread(target=gather, name="hang report", daemon=True)
        thread.start()
        thread.join(self._longest)
        return problems[0]

    def _gather(self, state: RankState) -> str:
        """Write the report or wait for another rank's; return why there is none, or ""."""
        gathering = self._gathering(self._watched.folder)
        gathering.ask()
        if gathering.write_report(state, _headline, self._patience, self._tell_report):
            return ""
        # The cause must reach the launcher before its consequences, whose end makes it end the others.
        if not gathering.wait_for_report(self._writing):
            if gathering.take_over(_headline, self._tell_report):
                return ""
            if not gathering.wait_for_report(self._writing):
                return f"{gathering.writer()} began the report and did not finish it"
        time.sleep(_AFTER_REPORT)
        if self._watched.tell_launcher is not None:  # else every rank would print it
            self._tell(f"It ended because the run hangs: see {gathering.folder / REPORT}", is_cause=False)
        return ""

    def _tell_report(self, text: str, states: Mapping[int, RankState]) -> None:
        """Publish the report; it is not the cause if a rank failed with an error, which that rank reports."""
        self._tell(text, is_cause=not any(state.error for state in states.values()))

    def _tell(self, text: str, *, is_cause: bool = True) -> None:
        self._told = True
        if self._watched.tell_launcher is not None:
            with suppress(OSError):  # the launcher has ended
                self._watched.tell_launcher(text, is_cause)
                return
        _print(text)


def _headline(states: Mapping[int, RankState]) -> str:
    """Return the first line of a report, about the rank that has stood still longest."""
    longest = max(states.values(), key=lambda state: state.seconds)
    return _hanging(longest.rank, longest.seconds)


def _hanging(rank: int, seconds: float) -> str:
    return f"The run hangs: rank {rank} has not moved for {seconds:.0f} s."


def _print(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _leave_after(seconds: float) -> None:
    guard = threading.Timer(seconds, os._exit, (ExitCode.FAILURE,))
    guard.daemon = True
    guard.start()


def _leave() -> None:
    """End at once: joining the main thread would wait forever."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(ExitCode.FAILURE)


LEAST, FACTOR = 60.0, 10.0  # seconds, and median steps: the larger of both is the automatic limit
EARLIER = 20.0
"""Seconds by which a report comes before the timeout of the collectives, which ends the processes without one."""

_STEP = {STEP, FORWARD_BACKWARD, BETWEEN, "data", "optimizer"}  # activities that last a part of a step


@dataclass(frozen=True, slots=True)
class HangLimit:
    """The limit of one run; `given` is `logging.hang_after_seconds`, `timeout` that of the collectives in seconds."""

    given: float | None  # None: the automatic limit; 0: none
    timeout: float

    @property
    def is_off(self) -> bool:
        """True if nothing is a hang."""
        return self.given == 0

    @property
    def longest_wait(self) -> float:
        """Seconds in a collective after which a rank hangs in any case."""
        return max(1.0, self.timeout - EARLIER)

    def exceeded(self, place: Position, seconds: float, waited: Callable[[], float]) -> bool:
        """Return whether a rank that has not moved for so many seconds hangs.

        By the automatic limit one that works alone for long, as on a large checkpoint, hangs when another waits for it.
        `waited` gives the seconds in a collective; it is called only near their timeout, and alone counts at the end.
        """
        if self.is_off:
            return False
        # At its end, for lm-eval, and until the data workers have started, a rank may take as long as it needs.
        may_last = place.activity in {END, TASKS} or (place.activity == "data" and place.median_step() is None)
        if self.given is not None and place.iteration and seconds > self.given and not may_last:
            return True
        if seconds > self.longest_wait and waited() > self.longest_wait:
            return True
        median = place.median_step()
        if self.given is not None or median is None or place.activity not in _STEP:
            return False
        return seconds > max(LEAST, FACTOR * median)
