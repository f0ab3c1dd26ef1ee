"""Ends a training that cannot recover: values that are not finite, or overflow at the smallest loss scale."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pretrain.collectives import tree_of_world
from pretrain.errors import NotFiniteError, TrainingError
from pretrain.report.hang.position import END
from pretrain.report.plain_text import rank_names
from pretrain.training.event import Event

if TYPE_CHECKING:
    from pretrain.engine.protocol import Step
    from pretrain.training.loop import Training
    from pretrain.training.reporting.meter import Totals
    from pretrain.training.saving import Saving


MAX_CONSECUTIVE_OVERFLOWS = 50
"""Consecutive overflows at the smallest loss scale after which a training ends with an error."""


@dataclass(frozen=True, slots=True)
class Health:
    """Judges whether a training can continue."""

    training: Training
    saving: Saving | None
    broken: BrokenSince | None  # None in fp16, which recovers from them

    def check(self, totals: Totals) -> None:
        """Check the interval that ends here; all ranks call it together."""
        # Only fp16 recovers from numbers that are not finite. Without a loss scale DeepSpeed skips a step that
        # megatron-core would take, with gradients that are not finite.
        precision, interval = self.training.recipe.precision, self.training.meter.interval
        if precision.dtype != "fp16" and (totals.nan_iterations or interval.skipped_iterations):
            raise self.not_finite()
        smallest = precision.min_loss_scale if precision.loss_scale is None else precision.loss_scale
        if interval.skipped_in_a_row >= MAX_CONSECUTIVE_OVERFLOWS and self.training.engine.loss_scale <= smallest:
            msg = (
                f"the last {interval.skipped_in_a_row} iterations up to {self.training.progress.iteration} overflowed "
                f"and were skipped, at the smallest loss scale, {smallest:g}.\n"
                "Lower optimizer.lr, or train with precision.dtype: bf16."
            )
            raise TrainingError(msg)

    def not_finite(self) -> NotFiniteError:
        """Return the error of a loss, gradients or weights that are not finite; all ranks call it together."""
        # It names the latest checkpoint: the one that is being written, if it succeeds.
        latest = None
        if self.saving is not None:
            self.training.meter.timers.position.enter(END)  # the checkpoint may take long
            self.saving.finish()
            latest = self.saving.folder.latest()
        start = "There is no checkpoint." if latest is None else f"The latest checkpoint is iteration {latest}."
        iterations = self.training.meter.interval.iterations
        # After a log line the interval is empty: the weights alone, before they are saved, are not finite.
        within = f"within the {iterations} iterations up to" if iterations else "after iteration"
        where = f"{within} {self.training.progress.iteration}"
        since = "" if self.broken is None else self.broken.describe()
        return NotFiniteError(
            f"loss, gradients or weights are not finite {since or where}. {start}\n"
            "Lower optimizer.lr or lengthen the warm-up, and start again from there. If only some ranks are named, "
            "suspect their devices."
        )


_NAMED = 8  # ranks whose host and device are named; the others by their numbers


class BrokenSince(Event):
    """Keeps on the device in which iteration this rank's own gradients, not yet reduced, were first not finite.

    In the next iteration those of all ranks are, since the reduction has spread them: whoever was first has made them.
    No step waits for it, and ranks exchange it only when a training has broken. It looks at gradients while they are
    there, since a fault that passes does not come again when its step is computed again.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._iteration = torch.zeros((), dtype=torch.int64, device=device)

    def end_step(self, iteration: int, step: Step) -> None:
        """Look at the step of an iteration, from 1; one that was withheld has broken nothing."""
        if step.own_gradients is not None and not step.withheld:
            is_first = ~torch.isfinite(step.own_gradients) & (self._iteration == 0)
            self._iteration.masked_fill_(is_first, iteration)

    def forget(self) -> None:
        """Begin again: the weights have gone back."""
        self._iteration.zero_()

    def describe(self) -> str:
        """Return "from iteration 16 on, first on rank 1 (node7, cuda:3)"; "" if no rank has seen any; collective."""
        tree = tree_of_world()
        of_all = tree.gathered((int(self._iteration), f"{socket.gethostname()}, {self._device}")) or []
        return tree.first_of(describe_first([iteration for iteration, _ in of_all], [name for _, name in of_all]))


def describe_first(iterations: list[int], names: list[str]) -> str:
    """Return the same for each rank's first iteration, 0 for none, and its host and device."""
    if not any(iterations):
        return ""
    first = min(filter(None, iterations))
    ranks = [rank for rank, iteration in enumerate(iterations) if iteration == first]
    since = f"from iteration {first} on, first on"
    if len(ranks) == len(iterations):
        return f"{since} {'all ranks' if len(ranks) > 1 else rank_names(ranks)}"
    if len(ranks) > _NAMED:
        return f"{since} {rank_names(ranks)}"
    return f"{since} {', '.join(f'rank {rank} ({names[rank]})' for rank in ranks)}"
