"""Events of the training loop: what happens beside the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pretrain.engine.protocol import KeepUpdate, Step


@dataclass(frozen=True, kw_only=True, slots=True)
class Due:
    """What is due after an iteration, equal on all ranks."""

    iteration: int  # from 1
    urgent: str = ""  # reason from outside to end here, such as "SIGTERM"; nothing is evaluated before
    reason: str = ""  # the same, or that of `train.exit_interval`; "" if the training continues
    line: bool = False
    checkpoint: bool = False  # not the last one, which `Event.end` writes
    evaluation: bool = False  # not the last one


class Event:
    """One thing that happens beside the steps; a subclass overrides what it needs.

    The loop calls all events in one order, on all ranks alike. `begin_step` and `end_step` may not wait for the device.
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
