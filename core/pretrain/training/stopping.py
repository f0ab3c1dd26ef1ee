"""Reasons to save and stop early, agreed on by all ranks in one small all-reduce between the hosts each iteration."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch
import torch.distributed as dist

from pretrain.collectives import AGREEMENT, Tree
from pretrain.exit_codes import ENDED_AT_ONCE, STOP_SIGNALS, End, ExitCode, StopRequest, of_signal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from pretrain.collectives import Pending
    from pretrain.recipe import Recipe


class SyncedValues(Protocol):
    """Numbers of each rank, `size` of them, whose sums all ranks get, one iteration later."""

    size: int

    def own(self) -> list[float]:
        """Return this rank's numbers, `size` of them."""

    def agreed(self, sums: Sequence[float]) -> None:
        """Take their sums over all ranks, the same on every rank."""


class Exchange:
    """Sums of numbers over all ranks, started in one iteration and read in the next: no step waits for it.

    In float64: sums of the ranks' float32 numbers are exact while their sizes differ by less than 2^29 / ranks, so they
    do not depend on the order, and are equal on all ranks. A world of one rank has its sums at once.
    """

    def __init__(self, *values: SyncedValues, timeout_minutes: int) -> None:
        """Make the process groups: collective."""
        self._values = values
        self._tree = Tree.between_hosts(AGREEMENT, timeout_minutes)
        self._sums: torch.Tensor | None = None
        self._pending: Pending | None = None

    def turn(self) -> None:
        """Give the values the sums of the turn before, and begin another; every rank calls it after every iteration."""
        self.settle()
        own = [number for value in self._values for number in value.own()]
        if self._tree.is_alone:
            self._hand_out(own)
            return
        self._sums = torch.tensor(own, dtype=torch.float64)
        self._pending = self._tree.begin(self._sums)

    def settle(self) -> None:
        """Wait for the turn that has begun, and give the values its sums."""
        if self._pending is not None and self._sums is not None:
            self._pending.wait()
            self._pending = None
            self._hand_out(self._sums.tolist())

    def sum_now(self, own: Sequence[float]) -> list[float]:
        """Return the sums of these numbers over all ranks, and wait for them; all ranks call it together."""
        self.settle()  # a turn goes on in a thread, and two threads have no order in the groups of a tree
        sums = torch.tensor(own, dtype=torch.float64)
        self._tree.reduce(sums)
        totals: list[float] = sums.tolist()
        return totals

    def _hand_out(self, sums: Sequence[float]) -> None:
        begin = 0
        for value in self._values:
            value.agreed(sums[begin : begin + value.size])
            begin += value.size


_TIME_LIMIT = "train.exit_duration_in_mins has passed"
REASONS = ("", _TIME_LIMIT, "the kill switch exists", "SIGHUP", "SIGINT", "SIGTERM")
"""Reasons by vote; the highest vote of all ranks wins."""
_SIGNALS = {number.name: number for number in STOP_SIGNALS}
_ANSWER = "SIGINT: asked to {} after an iteration; a second Ctrl-C ends at once, and what is not saved is lost\n"


class Stopping:
    """Watches signals, the clock and the kill-switch file; a context that restores the signal handlers.

    SIGTERM and SIGHUP after the first stop signal do nothing, nor do they while a rank that has stopped leaves: a
    scheduler repeats them, its own is still on the way, or torchrun ends the others when the first has left. A second
    Ctrl-C ends the rank at once; while it leaves, that of a person who waits for it.

    Ranks agree in the exchange between hosts, whose sums are read one iteration later. The loop therefore leaves one
    iteration after the first rank wants to.
    """

    size = len(REASONS) - 1

    def __init__(self, recipe: Recipe, *values: SyncedValues, answers: bool = True) -> None:
        """Make the exchange, which is collective; the clock starts now. One rank of a node `answers` Ctrl-C."""
        train = recipe.train
        minutes = train.exit_duration_in_mins
        self._deadline = None if minutes is None else time.monotonic() + 60 * minutes
        # One rank looks: a thousand would load a shared file system with a request each step.
        looks = train.kill_switch_path is not None and dist.get_rank() == 0
        self._kill_switch = Path(train.kill_switch_path or "") if looks else None
        self._request = StopRequest()
        self._agreed = 0
        self._answers = answers
        self._saves = recipe.checkpoint.save is not False
        self._handlers: dict[int, Any] = {}
        self.exchange = Exchange(self, *values, timeout_minutes=recipe.parallel.distributed_timeout_minutes)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                    self._handlers[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, kind: object, *_error: object) -> None:
        # A handler of Python's would be gone while the interpreter ends; a rank that hangs there its parent kills.
        is_awaited = REASONS[self._agreed] in _SIGNALS and not self._request.number
        for number, handler in self._handlers.items():
            is_ignored = is_awaited if number == signal.SIGINT else self._agreed > 0
            signal.signal(number, signal.SIG_IGN if is_ignored else handler)
        if self._agreed and kind is None:
            # All are about to leave, with another exit code than 0: mpirun, and Slurm with --kill-on-bad-exit, end the
            # others with the first that does.
            self.settle()
            self.exchange.sum_now([0.0])

    def reason(self) -> str:
        """Return why all ranks stop now, or an empty string; every rank calls it after every iteration."""
        self.exchange.turn()
        return REASONS[self._agreed]

    def settle(self) -> None:
        """Wait for the pending vote, and count it; called once more before the groups are destroyed."""
        self.exchange.settle()

    def own(self) -> list[float]:
        """Return this rank's vote: one for its reason."""
        vote = self._own_vote()
        return [float(reason == vote) for reason in range(1, len(REASONS))]

    def agreed(self, sums: Sequence[float]) -> None:
        """Take the votes of all ranks for each reason."""
        self._agreed = max((reason for reason, votes in enumerate(sums, start=1) if votes), default=0)

    def _own_vote(self) -> int:
        if self._request.number:
            return REASONS.index(signal.Signals(self._request.number).name)
        if self._kill_switch is not None and self._kill_switch.exists():
            return 2
        return int(self._deadline is not None and time.monotonic() > self._deadline)

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        if self._request.number and number != signal.SIGINT:
            return  # Slurm repeats SIGTERM until its SIGKILL, also while we save; a person who means it presses Ctrl-C
        if self._request.take(number) and number == signal.SIGINT:
            self._answer(_ANSWER.format("save and end" if self._saves else "end"))
        if self._request.at_once:
            self._answer(ENDED_AT_ONCE.format(signal.Signals(number).name))
            signal.signal(number, self._handlers[number])
            signal.raise_signal(number)

    def _answer(self, line: str) -> None:
        """Show a line, behind the bar of a terminal, which is drawn anew."""
        # Not by print, which the signal may have interrupted.
        if self._answers:
            with suppress(OSError):  # nobody listens
                os.write(2, b"\n" * os.isatty(2) + line.encode())


def end_of(reason: str, *, saves: bool) -> End:
    """Return how a training has ended that left for this reason, "" at its end; `saves`: it writes checkpoints."""
    number = _SIGNALS.get(reason)
    if number is None and reason != _TIME_LIMIT:
        return End(ExitCode.COMPLETE, reason)
    if saves:
        return End(ExitCode.SAVED, reason, by_signal=number is not None)
    return End(ExitCode.COMPLETE if number is None else of_signal(number), reason, by_signal=number is not None)
