"""Events of the training loop: what happens beside the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pretrain.engine.protocol import KeepUpdate, Step


@dataclass(frozen=True, kw_only=True, slots=True)
class Due:
    """What is due after an iteration, equal on all ranks.

    Attributes:
        iteration: its number, from 1.
        urgent: reason from outside to end the training here, such as "SIGTERM"; nothing is evaluated before.
        reason: the same, or that of `train.exit_interval`; "" if the training continues.
        line: a log line.
        checkpoint: a checkpoint that is not the last one; `Event.end` writes that.
        evaluation: an evaluation that is not the last one.
    """

    iteration: int
    urgent: str = ""
    reason: str = ""
    line: bool = False
    checkpoint: bool = False
    evaluation: bool = False


class Event:
    """One thing that happens beside the steps. The loop calls all events in one order, on all ranks alike.

    A subclass overrides what it needs. Nothing in `begin_step` and `end_step` may wait for the device.
    """

    @property
    def keep_update(self) -> KeepUpdate | None:
        """Decision on an update before it is made, as `Engine.train_step` takes it; of one event, for all steps."""
        return None

    def begin(self) -> None:
        """Before the first step, if any follows."""

    def begin_step(self) -> None:
        """Right before a step."""

    def end_step(self, iteration: int, step: Step) -> None:
        """Right after the step of an iteration that is counted."""

    def after_iteration(self, due: Due) -> bool:  # noqa: ARG002  for those that override it
        """After an iteration, also a skipped one; return True if it was taken back: then no other event is called."""
        return False

    def end(self, reason: str) -> None:
        """After the last iteration; `reason` is empty if the training came to its end."""
