"""Takes the steps in order: one rank leads, the others follow, nobody waits for a silent rank."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from pretrain.tools.doctor.ranks.status_board import SilenceWatch
from pretrain.tools.doctor.ranks.step import ERROR, STUCK, VALUE, StepResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pretrain.tools.doctor.finding import Finding
    from pretrain.tools.doctor.ranks.status_board import StatusBoard
    from pretrain.tools.doctor.ranks.step import Answers, ExaminationStep


_ORDER, _END = "order", -1
"""Key of the leader's latest order, a step's number and what `measure` is given; the number that ends it all."""
_GRACE = 2.0
"""Seconds that the other ranks have to show that they live, when rank 0 is silent: four signs of life."""


class StepSequence:
    """The examination on one rank."""

    def __init__(self, board: StatusBoard, steps: Sequence[ExaminationStep], device: torch.device | None) -> None:
        """Begin on this rank's device."""
        self._board, self._steps = board, steps
        self._rank, self._size = board.world.rank, board.world.world_size
        self._part = StepWorker(board, device)
        self._watch = SilenceWatch(board)
        self._period = max(0.02, self._size / 5000)  # all ranks ask one store

    def run(self) -> RankOutcome:
        """Take the steps; every rank calls it."""
        return self._lead() if self._rank == 0 else self._follow()

    def _lead(self) -> RankOutcome:
        findings: list[Finding] = []
        known: dict[str, Answers] = {}
        taken = 0
        for number, step in enumerate(self._steps):
            orders = step.orders(known)
            if orders is None:
                continue
            taken = number
            self._board.write(_ORDER, [number, orders])
            self._part.begin(number, step, orders)
            ending = self._collect(number)
            known[step.name] = ending.values
            findings += ending.findings(self._board.timeout)
            if ending.is_last:
                break
        self._dismiss(taken)
        return self._reporting(findings)

    def _collect(self, number: int) -> StepResult:
        """Wait until every rank has answered or is silent."""
        given: dict[int, Any] = {}
        everyone = set(range(self._size))
        while True:
            self._part.tend()
            given |= answers(self._board, number, everyone - given.keys())
            missing = sorted(everyone - given.keys())
            if not missing:
                return StepResult(self._steps[number], given)
            self._watch.look(missing)
            if self._watch.silent(missing) == missing:
                return StepResult(self._steps[number], given, [self._watch.describe(rank) for rank in missing])
            time.sleep(self._period)

    def _dismiss(self, number: int) -> None:
        """Let the others leave, and wait until those that answered the last step taken have.

        Their store ends with this process, and a client that asks it then ends its own process (SIGABRT).
        """
        self._board.write(_ORDER, [_END, None])
        answered = set(answers(self._board, number, range(1, self._size)))
        deadline = time.monotonic() + self._board.timeout
        while answered and not self._board.lost and time.monotonic() < deadline:
            self._board.beat()
            left = self._board.read(left_key(rank) for rank in answered)
            answered = {rank for rank in answered if left_key(rank) not in left}
            self._watch.look(answered)
            answered -= set(self._watch.silent(answered))
            time.sleep(self._period)
        self._board.flush()

    def _follow(self) -> RankOutcome:
        leader = current = 0
        self._part.begin(0, self._steps[0], None)
        while True:
            self._part.tend()
            number, orders = self._board.read([_ORDER]).get(_ORDER, (current, None))
            if number == _END:
                return self._left()
            if number > current:
                current = number
                self._part.begin(number, self._steps[number], orders)
            self._watch.look([leader])
            is_silent = bool(self._watch.silent([leader]))
            # One late answer is no silence: rank 0 may live, and report.
            if is_silent and (self._board.lost or not self._board.reached):
                return self._alone(leader)
            if is_silent:
                leader += 1
                self._watch.renew(leader)
            if leader == self._rank:
                return self._take_over(current)
            time.sleep(self._period)

    def _left(self) -> RankOutcome:
        self._board.write(left_key(self._rank), 1)
        self._board.flush()
        return RankOutcome(stuck=self._part.busy())

    def _take_over(self, number: int) -> RankOutcome:
        """End the examination in place of rank 0: report what is on the board, and who is silent."""
        self._board.write(_ORDER, [_END, None])
        others = [rank for rank in range(self._size) if rank != self._rank]
        begun = time.monotonic()
        self._watch.look(others, at_once=True)
        seen = time.monotonic()
        while time.monotonic() - begun < min(_GRACE, self._board.timeout):
            self._part.tend()
            self._watch.look(others)
            time.sleep(self._period)
        left = self._board.read(left_key(rank) for rank in others)
        silent = [rank for rank in self._watch.unchanged_since(seen, others) if left_key(rank) not in left]
        if not self._board.first_reached:  # then the others cannot have been seen either
            silent = list(range(self._rank))
        return self._reporting(self._findings_until(number, [self._watch.describe(rank) for rank in silent]))

    def _findings_until(self, number: int, silent: list[Finding]) -> list[Finding]:
        """Return the findings of all steps up to a number, from the board."""
        found: list[Finding] = []
        for each, step in enumerate(self._steps[: number + 1]):
            given = answers(self._board, each, range(self._size))
            ending = StepResult(step, given, silent if each == number else [])
            found += ending.findings(self._board.timeout)
        return found

    def _alone(self, leader: int) -> RankOutcome:
        """Report without a board: the lowest rank of the node at once, the others if it has not ended them by then."""
        time.sleep(2 * _GRACE * self._board.world.local_rank)
        first = self._steps[0]
        own = list(first.judge({self._rank: first.measure(None)}))
        return self._reporting([*own, self._watch.describe(leader)])

    def _reporting(self, findings: list[Finding]) -> RankOutcome:
        return RankOutcome(findings=tuple(findings), reports=True, stuck=self._part.busy())


def left_key(rank: int) -> str:
    """Return the board's key that says that a rank has left."""
    return f"left/{rank}"


class StepWorker:
    """This rank's part of the steps."""

    def __init__(self, board: StatusBoard, device: torch.device | None) -> None:
        """Begin with no step."""
        self._board = board
        self._worker = CallThread(device)
        self._future: Future[Any] | None = None
        self._number = -1
        self._stuck = False

    def begin(self, number: int, step: ExaminationStep, orders: Any) -> None:
        """Begin to measure."""
        self._number = number
        self._board.doing(step.name)
        self._future = self._worker.start(partial(step.measure, orders))

    def tend(self) -> None:
        """Say that this rank lives, and answer if the step has ended, or has said nothing for too long."""
        self._board.beat()
        if self._future is None:
            return
        if self._future.done():
            self._board.write(answer_key(self._number, self._board.world.rank), _answer(self._future))
            self._future = None
        elif not self._stuck and time.monotonic() - self._board.spoken > self._board.timeout:
            self._stuck = True
            self._board.write(answer_key(self._number, self._board.world.rank), {STUCK: self._board.words})

    def busy(self) -> bool:
        """Say whether the thread still works, perhaps without end."""
        return self._future is not None


def answer_key(number: int, rank: int) -> str:
    """Return the board's key of a rank's answer to a step."""
    return f"answer/{number}/{rank}"


def answers(board: StatusBoard, number: int, ranks: Iterable[int]) -> Mapping[int, Mapping[str, Any]]:
    """Return the answers of those of the ranks that have answered."""
    keys = {answer_key(number, rank): rank for rank in ranks}
    return {keys[key]: found for key, found in board.read(keys).items()}


def _answer(future: Future[Any]) -> dict[str, Any]:
    error = future.exception()
    if error is None:
        return {VALUE: future.result()}
    text = (str(error).splitlines() or [""])[0]
    return {ERROR: f"{type(error).__name__}: {text}"}


class CallThread:
    """One thread for all of it, since the current device belongs to a thread."""

    def __init__(self, device: torch.device | None) -> None:
        """Start the thread on the device of this rank."""
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, args=(device,), daemon=True, name="doctor worker").start()

    def start(self, call: Callable[[], Any]) -> Future[Any]:
        """Call it in the thread, after those before it."""
        future: Future[Any] = Future()
        self._calls.put((call, future))
        return future

    def _work(self, device: torch.device | None) -> None:
        if device is not None:
            torch.get_device_module(device).set_device(device)
        while True:
            call, future = self._calls.get()
            try:
                future.set_result(call())
            except BaseException as exc:  # noqa: BLE001  whatever it is, also a library's sys.exit: a finding
                future.set_exception(exc)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankOutcome:
    """Outcome of the checks between ranks, on one rank.

    Attributes:
        findings: of all ranks and between them, on the rank that reports; empty on the others.
        reports: whether this rank shows them: rank 0, or the lowest rank that is there if rank 0 is silent.
        stuck: the process must end by `leave`: a thread waits in a collective or a device call that never ends, for
            which the interpreter would wait at its exit; or there are several ranks, and threads in clients of a store
            abort the process at the interpreter's exit.
    """

    findings: tuple[Finding, ...] = ()
    reports: bool = False
    stuck: bool = False

    def leave(self, code: int) -> NoReturn:
        """End this process at once, after flushing its output: no destructor waits for a stuck thread."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
