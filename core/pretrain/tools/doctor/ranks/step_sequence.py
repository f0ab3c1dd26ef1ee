"""Takes the steps in order: one rank leads, the others follow, nobody waits for a silent rank."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from pretrain.report.plain_text import rank_names
from pretrain.tools.doctor.finding import Finding, guarded
from pretrain.tools.doctor.ranks.status_board import CallThread, SilenceWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Future

    import torch

    from pretrain.tools.doctor.ranks.status_board import StatusBoard

Answers = dict[int, Any]  # values that JSON knows, by the rank that measured them
VALUE, ERROR, STUCK = "value", "error", "stuck"  # keys of an answer: what was measured; the error; what never ended
_ORDER, _END = "order", -1
"""Key of the leader's latest order, a step's number and what `measure` is given; the number that ends it all."""
_GRACE = 2.0  # seconds that the other ranks have to show that they live, when rank 0 is silent: four signs of life


@dataclass(frozen=True, kw_only=True, slots=True)
class ExaminationStep:
    """A step of the examination that all ranks take together; all values are JSON values."""

    # `orders` is called on the leader with the answers to the steps before, by their names; it returns what every
    # rank's `measure` is given, or None to leave the step out. `measure` is called on every rank, in a thread; it says
    # what it does (`StatusBoard.doing`) before what may take seconds, and returns None on a rank that has no part in
    # it. `judge` is called on the leader with what the ranks have measured; not where none has.

    name: str
    measure: Callable[[Any], Any]
    judge: Callable[[Answers], Sequence[Finding]] = lambda _: ()
    orders: Callable[[Mapping[str, Answers]], Any] = lambda _: {}
    collective: bool = False  # the ranks wait for each other in it, so that an error of one ends the examination


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of a step."""

    step: ExaminationStep
    given: Mapping[int, Mapping[str, Any]]  # of the ranks that have answered, by `VALUE`, `ERROR` or `STUCK`
    silent: list[Finding] = field(default_factory=list)  # a finding about each rank that is silent

    @property
    def values(self) -> Answers:
        """The measured values, by rank; without the ranks that had no part in the step."""
        values = {rank: answer.get(VALUE) for rank, answer in sorted(self.given.items())}
        return {rank: value for rank, value in values.items() if value is not None}

    @property
    def is_last(self) -> bool:
        """True if no further step can be taken together."""
        return bool(self.silent or self._of(STUCK) or (self._of(ERROR) and self.step.collective))

    def findings(self, timeout: float) -> list[Finding]:
        """Return the judgement, and for ranks without a value the cause, not its consequences."""
        name, is_collective = self.step.name, self.step.collective
        judged = guarded(name, lambda: self.step.judge(self.values)) if self.values else []
        if self.silent and is_collective:
            return [*judged, *self.silent]  # that other ranks failed or waited is the consequence
        errors, found = self._of(ERROR), list[Finding]()
        for text, ranks in errors.items():
            found.append(Finding.wrong(name, text, "a training would fail the same way", ranks))
        for doing, ranks in self._of(STUCK).items() if not (self.silent or errors) else ():
            remedy = "a device, a network or a file system hangs"
            if is_collective:
                remedy = "all ranks are alive: check the network between them and the communication library's log"
            text = f"{rank_names(ranks)}: {doing} did not finish within {timeout:g} s"
            found.append(Finding.wrong(name, text, remedy, ranks))
        return [*judged, *found, *self.silent]

    def _of(self, kind: str) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for rank, answer in sorted(self.given.items()):
            if kind in answer:
                found.setdefault(answer[kind], []).append(rank)
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class RankOutcome:
    """Outcome of the checks between ranks, on one rank."""

    findings: tuple[Finding, ...] = ()  # of all ranks and between them, on the rank that reports; empty on the others
    reports: bool = False  # whether this rank shows them: rank 0, or the lowest rank that is there if rank 0 is silent
    # The process must end by `leave`: a thread waits in a collective or a device call that never ends, for which the
    # interpreter would wait at its exit; or there are several ranks, and clients of a store abort the process then.
    stuck: bool = False

    def leave(self, code: int) -> NoReturn:
        """End this process at once, after flushing its output: no destructor waits for a stuck thread."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class StepSequence:
    """The examination on one rank."""

    def __init__(self, board: StatusBoard, steps: Sequence[ExaminationStep], device: torch.device | None) -> None:
        self._board, self._steps = board, steps
        self._rank, self._size = board.world.rank, board.world.world_size
        self._part = _StepWorker(board, device)
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
        given: dict[int, Any] = {}
        everyone = set(range(self._size))
        while True:
            self._part.tend()
            given |= self._answers(number, everyone - given.keys())
            missing = sorted(everyone - given.keys())
            if not missing:
                return StepResult(self._steps[number], given)
            self._watch.look(missing)
            if self._watch.silent(missing) == missing:
                return StepResult(self._steps[number], given, [self._watch.describe(rank) for rank in missing])
            time.sleep(self._period)

    def _dismiss(self, number: int) -> None:
        """Let the others leave, and wait until those that answered the last step taken have."""
        # Their store ends with this process, and a client that asks it then ends its own process (SIGABRT).
        self._board.write(_ORDER, [_END, None])
        answered = set(self._answers(number, range(1, self._size)))
        deadline = time.monotonic() + self._board.timeout
        while answered and not self._board.lost and time.monotonic() < deadline:
            self._board.beat()
            answered -= self._left(answered)
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
                self._board.write(f"left/{self._rank}", 1)
                self._board.flush()
                return RankOutcome(stuck=self._part.busy)
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
        left = self._left(others)
        silent = [rank for rank in self._watch.unchanged_since(seen, others) if rank not in left]
        if not self._board.first_reached:  # then the others cannot have been seen either
            silent = list(range(self._rank))
        found: list[Finding] = []
        for each, step in enumerate(self._steps[: number + 1]):
            described = [self._watch.describe(rank) for rank in silent] if each == number else []
            ending = StepResult(step, self._answers(each, range(self._size)), described)
            found += ending.findings(self._board.timeout)
        return self._reporting(found)

    def _alone(self, leader: int) -> RankOutcome:
        """Report without a board: the lowest rank of the node at once, the others if it has not ended them by then."""
        time.sleep(2 * _GRACE * self._board.world.local_rank)
        first = self._steps[0]
        own = first.judge({self._rank: first.measure(None)})
        return self._reporting([*own, self._watch.describe(leader)])

    def _reporting(self, findings: list[Finding]) -> RankOutcome:
        return RankOutcome(findings=tuple(findings), reports=True, stuck=self._part.busy)

    def _answers(self, number: int, ranks: Iterable[int]) -> dict[int, Mapping[str, Any]]:
        keys = {_answer_key(number, rank): rank for rank in ranks}
        return {keys[key]: found for key, found in self._board.read(keys).items()}

    def _left(self, ranks: Iterable[int]) -> set[int]:
        keys = {f"left/{rank}": rank for rank in ranks}
        return {keys[key] for key in self._board.read(keys)}


def _answer_key(number: int, rank: int) -> str:
    return f"answer/{number}/{rank}"


class _StepWorker:
    def __init__(self, board: StatusBoard, device: torch.device | None) -> None:
        self._board = board
        self._worker = CallThread(device)
        self._future: Future[Any] | None = None
        self._number = -1
        self._stuck = False

    def begin(self, number: int, step: ExaminationStep, orders: Any) -> None:
        self._number = number
        self._board.doing(step.name)
        self._future = self._worker.start(partial(step.measure, orders))

    def tend(self) -> None:
        """Publish that this rank is alive, and its answer once the step has ended or is stuck."""
        self._board.beat()
        if self._future is None:
            return
        if self._future.done():
            self._answer(_outcome(self._future))
            self._future = None
        elif not self._stuck and time.monotonic() - self._board.spoken > self._board.timeout:
            self._stuck = True
            self._answer({STUCK: self._board.words})

    @property
    def busy(self) -> bool:
        return self._future is not None

    def _answer(self, answer: dict[str, Any]) -> None:
        self._board.write(_answer_key(self._number, self._board.world.rank), answer)


def _outcome(future: Future[Any]) -> dict[str, Any]:
    error = future.exception()
    if error is None:
        return {VALUE: future.result()}
    text = (str(error).splitlines() or [""])[0]
    return {ERROR: f"{type(error).__name__}: {text}"}
