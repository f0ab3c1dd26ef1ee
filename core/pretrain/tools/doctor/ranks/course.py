"""The steps in their order: one rank leads, the others follow, and nobody waits for a rank that is silent."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pretrain.tools.doctor.ranks.ending import Ending
from pretrain.tools.doctor.ranks.own_part import OwnPart, answers
from pretrain.tools.doctor.ranks.rank_outcome import Outcome
from pretrain.tools.doctor.ranks.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from pretrain.tools.doctor.finding import Finding
    from pretrain.tools.doctor.ranks.board import Board
    from pretrain.tools.doctor.ranks.step import Answers, Step

_ORDER, _END = "order", -1
"""Key of the leader's latest order, a step's number and what `measure` is given; the number that ends it all."""
_GRACE = 2.0
"""Seconds that the other ranks have to show that they live, when rank 0 is silent: four signs of life."""


class Course:
    """The examination on one rank."""

    def __init__(self, board: Board, steps: Sequence[Step], device: torch.device | None) -> None:
        """Begin on this rank's device."""
        self._board, self._steps = board, steps
        self._rank, self._size = board.world.rank, board.world.world_size
        self._part = OwnPart(board, device)
        self._watch = Watch(board)
        self._period = max(0.02, self._size / 5000)  # all ranks ask one store

    def run(self) -> Outcome:
        """Take the steps; every rank calls it."""
        return self._lead() if self._rank == 0 else self._follow()

    def _lead(self) -> Outcome:
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

    def _collect(self, number: int) -> Ending:
        """Wait until every rank has answered or is silent."""
        given: dict[int, Any] = {}
        everyone = set(range(self._size))
        while True:
            self._part.tend()
            given |= answers(self._board, number, everyone - given.keys())
            missing = sorted(everyone - given.keys())
            if not missing:
                return Ending(self._steps[number], given)
            self._watch.look(missing)
            if self._watch.silent(missing) == missing:
                return Ending(self._steps[number], given, [self._watch.describe(rank) for rank in missing])
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

    def _follow(self) -> Outcome:
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

    def _left(self) -> Outcome:
        self._board.write(left_key(self._rank), 1)
        self._board.flush()
        return Outcome(stuck=self._part.busy())

    def _take_over(self, number: int) -> Outcome:
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
            ending = Ending(step, given, silent if each == number else [])
            found += ending.findings(self._board.timeout)
        return found

    def _alone(self, leader: int) -> Outcome:
        """Report without a board: the lowest rank of the node at once, the others if it has not ended them by then."""
        time.sleep(2 * _GRACE * self._board.world.local_rank)
        first = self._steps[0]
        own = list(first.judge({self._rank: first.measure(None)}))
        return self._reporting([*own, self._watch.describe(leader)])

    def _reporting(self, findings: list[Finding]) -> Outcome:
        return Outcome(findings=tuple(findings), reports=True, stuck=self._part.busy())


def left_key(rank: int) -> str:
    """Return the board's key that says that a rank has left."""
    return f"left/{rank}"
