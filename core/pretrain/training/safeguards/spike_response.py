"""Answers to a loss spike: warn, skip the update, or roll back."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from pretrain.errors import TrainingError
from pretrain.report.hang.position import LOAD
from pretrain.report.metrics import EventRecord
from pretrain.training.event import Event
from pretrain.training.safeguards.spike_watch import Spike

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.engine.protocol import KeepUpdate, Step
    from pretrain.training.event import Due
    from pretrain.training.loop import Training
    from pretrain.training.safeguards.health import BrokenSince
    from pretrain.training.safeguards.spike_watch import SpikeWatch
    from pretrain.training.saving import Saving

    Numbers = dict[str, float | int | str | None]

MOST_ROLLBACKS = 3  # rollbacks to the same weights; one more spike before a step is saved ends the training
MOST_IN_A_ROW = 50  # updates in a row that are left out; as many fp16 overflows in a row end a training (`health`)


@dataclass(slots=True)
class SpikeResponse(Event):
    """Answers the spikes that a watch finds, equally on all ranks.

    A checkpoint, or a copy on the nodes, is written only when the losses up to its iteration are judged, so that the
    latest one is always from before a spike that is found.
    """

    training: Training
    watch: SpikeWatch
    saving: Saving | None  # None if no checkpoints are saved
    broken: BrokenSince | None  # goes back too; None in fp16
    _rollbacks: Counter[int | None] = field(default_factory=Counter, init=False)
    _withheld: int = field(default=0, init=False)
    _told_of: int = field(default=-1, init=False)

    @property
    def keep_update(self) -> KeepUpdate | None:
        """Decision on an update before it is made; None for actions that come after it."""
        return self._keeps if self.training.recipe.train.loss_spike.action == "skip" else None

    def end_step(self, iteration: int, step: Step) -> None:
        """Take the loss of the step."""
        self.watch.see(iteration, step)
        self._withheld = self._withheld + 1 if step.withheld else 0

    def after_iteration(self, due: Due) -> bool:
        """Answer the spikes that were found; return whether the steps after the last checkpoint are taken back."""
        # Before a line, a checkpoint and a copy all losses so far are judged. A training that is asked to end here does
        # not go back: its next part does, since no checkpoint is written after the spike.
        if due.line or due.checkpoint or due.copy:
            self.watch.settle(self.training.stopping.exchange)
        action = self.training.recipe.train.loss_spike.action
        while (spike := self.watch.take()) is not None:
            if action != "rollback" or self.saving is None or self.saving.latest is None:
                self._say(spike, action)
            elif due.urgent:
                self._leave(self.saving, spike)
                return True
            else:
                self._roll_back(self.saving, spike, self.saving.latest)
                return True
        return False

    def takes_back_weights(self) -> bool:
        """Go back from weights of this iteration that are not finite; return whether that is the answer to them."""
        # All ranks call it together, with all losses judged: the next loss need not show it, as that of a rare token.
        recipe = self.training.recipe
        # Losses of fp16 may be so, and are not judged.
        goes_back = recipe.precision.dtype != "fp16" and recipe.train.loss_spike.action == "rollback"
        if not goes_back or self.saving is None or self.saving.latest is None:
            return False
        spike = Spike(iteration=self.training.progress.iteration, loss=math.nan, median=None, of="weights")
        self._roll_back(self.saving, spike, self.saving.latest)
        return True

    def _keeps(self, loss: Tensor | None) -> bool:
        return self.watch.keeps(self.training.progress.iteration + 1, loss, self.training.stopping.exchange)

    def _say(self, spike: Spike, action: str) -> None:
        is_next, self._told_of = spike.iteration == self._told_of + 1, spike.iteration
        if is_next and action != "skip":
            return
        then = {
            "warn": "the training continues.",
            "skip": "its update is left out.",
            "rollback": "there is no earlier checkpoint to go back to.",
        }[action]
        self._log("loss_spike", self.training.progress.iteration, f"warning: {_told(spike)}: {then}", _numbers(spike))
        if self._withheld >= MOST_IN_A_ROW:
            threshold = self.training.recipe.train.loss_spike.threshold
            msg = (
                f"the last {self._withheld} losses up to iteration {self.training.progress.iteration} were over "
                f"train.loss_spike.threshold {threshold:g}, and no update was made.\n"
                "Start again from a checkpoint before, with a lower optimizer.lr or a higher threshold."
            )
            raise TrainingError(msg)

    def _log(self, name: Literal["loss_spike", "rollback"], iteration: int, text: str, numbers: Numbers) -> None:
        record = EventRecord(event=name, iteration=iteration, text=text, numbers=numbers)
        self.training.meter.logger.event(record)

    def _leave(self, saving: Saving, spike: Spike) -> None:
        saving.leave_out(self.training.progress)
        self.training.meter.logger.note(
            f"{_told(spike)}: no checkpoint is saved after it. The next start of the run continues from "
            f"iteration {saving.latest}."
        )

    def _roll_back(self, saving: Saving, spike: Spike, checkpoint: int) -> None:
        first, last = self._stretch(spike, checkpoint)
        self._rollbacks[saving.trained_until] += 1
        if self._rollbacks[saving.trained_until] > MOST_ROLLBACKS:
            raise TrainingError(_too_many(spike, checkpoint))
        self.watch.forget(self.training.stopping.exchange)
        made = self._made_by()
        with self.training.meter.timers.position.during(LOAD):
            earlier, notices = saving.load_latest(self.training.engine)
            self.training.progress.go_back(earlier)
            self.training.progress.left_out.append([first, last])
            self.training.batches.go_back()
        self.training.meter.timers.position.forget_steps()
        self.training.meter.go_back(self.training.progress)
        text = f"{_told(spike)}{made}: back to iteration {checkpoint}; iterations {first} to {last} are left out."
        numbers = _numbers(spike) | {"first_left_out": first, "last_left_out": last}
        self._log("rollback", checkpoint, text, numbers)
        for notice in notices:
            self.training.meter.logger.note(notice)

    def _made_by(self) -> str:
        """Return which ranks have made gradients that are not finite, and forget it."""
        since = "" if self.broken is None else self.broken.describe()
        if self.broken is not None:
            self.broken.forget()
        return since and f", gradients not finite {since}"

    def _stretch(self, spike: Spike, checkpoint: int) -> tuple[int, int]:
        around = self.training.recipe.train.loss_spike.leave_out
        if spike.of == "weights":  # any batch since the checkpoint may have broken them
            return checkpoint + 1, spike.iteration + around
        # A loss that is not finite comes from weights that are not: the iteration before has broken them.
        is_broken = spike.of == "loss" and not math.isfinite(spike.loss)
        before = max(1, around) if is_broken else around
        return max(checkpoint + 1, spike.iteration - before), spike.iteration + around


def _told(spike: Spike) -> str:
    if spike.of == "weights":
        return f"weights that are not finite after iteration {spike.iteration}"
    if spike.of == "gradients":
        return f"gradients that are not finite in iteration {spike.iteration}, with loss {spike.loss:.4f}"
    if not math.isfinite(spike.loss):
        return f"loss {spike.loss:g} in iteration {spike.iteration}"
    times = "" if not spike.median else f", {spike.loss / spike.median:.1f} times the median {spike.median:.4f} before"
    return f"loss {spike.loss:.4f} in iteration {spike.iteration}{times}"


def _numbers(spike: Spike) -> Numbers:
    return {"spike_iteration": spike.iteration, "loss": spike.loss, "median": spike.median}


def _too_many(spike: Spike, checkpoint: int) -> str:
    return (
        f"{_told(spike)}, after {MOST_ROLLBACKS} rollbacks to the checkpoint of iteration {checkpoint}: leaving out "
        "batches does not help.\n"
        "Resume from an earlier checkpoint (write its iteration into latest_checkpointed_iteration.txt), with a lower "
        "optimizer.lr; or with a higher train.loss_spike.threshold or leave_out."
    )
