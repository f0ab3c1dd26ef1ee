"""Reasons to save and stop before the end, agreed on by all ranks."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch.distributed as dist

from pretrain.training.safeguards.exchange import Exchange

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from pretrain.recipe import Recipe
    from pretrain.training.safeguards.exchange import Rider

REASONS = (
    "",
    "train.exit_duration_in_mins has passed",
    "the kill switch exists",
    "SIGHUP",
    "SIGINT",
    "SIGTERM",
)
"""Reasons by vote; the highest vote of all ranks wins."""
_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


class Stopping:
    """Watches signals, the clock and the kill-switch file; a context that restores the signal handlers.

    A rank that stops because another one was signalled ignores signals from then on: its own is still on the way.

    Ranks agree in the exchange between hosts, whose sums are read one iteration later. The loop therefore leaves one
    iteration after the first rank wants to.
    """

    size = len(REASONS) - 1

    def __init__(self, recipe: Recipe, *riders: Rider) -> None:
        """Take the recipe's reasons, and what else rides in the exchange; collective. The clock starts now."""
        train = recipe.train
        minutes = train.exit_duration_in_mins
        self._deadline = None if minutes is None else time.monotonic() + 60 * minutes
        # One rank looks: a thousand would load a shared file system with a request each step.
        looks = train.kill_switch_path is not None and dist.get_rank() == 0
        self._kill_switch = Path(train.kill_switch_path or "") if looks else None
        self._signal = 0
        self._agreed = 0
        self._handlers: dict[int, Any] = {}
        self.exchange = Exchange(self, *riders, timeout_minutes=recipe.parallel.distributed_timeout_minutes)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                    self._handlers[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *_error: object) -> None:
        # The other rank's node, or Slurm, reached it first; ours must not end a rank that has saved and is leaving. A
        # handler of Python's would be gone while the interpreter ends; a rank that hangs there is killed by its parent.
        is_awaited = REASONS[self._agreed] in {number.name for number in _SIGNALS} and not self._signal
        for number, handler in self._handlers.items():
            signal.signal(number, signal.SIG_IGN if is_awaited else handler)

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
        if self._signal:
            return REASONS.index(signal.Signals(self._signal).name)
        if self._kill_switch is not None and self._kill_switch.exists():
            return 2
        return int(self._deadline is not None and time.monotonic() > self._deadline)

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        self._signal = number
        # A second signal of the kind ends the process, as it does by default.
        signal.signal(number, self._handlers[number])
