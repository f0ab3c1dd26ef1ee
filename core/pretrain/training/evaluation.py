"""Loss and perplexity on held-out text, at an interval and at the end of a training."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from pretrain.collectives import on_rank0
from pretrain.report.records import EvalRecord
from pretrain.training.event import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pretrain.engine.protocol import Batch, ForwardEngine
    from pretrain.recipe import Recipe
    from pretrain.training.event import Due
    from pretrain.training.loop import Training
    from pretrain.training.progress import Progress
    from pretrain.training.reporting.run_logger import RunLogger


Split = Literal["valid", "test"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Evaluates the same samples every time, so that the losses of one run can be compared.

    Attributes:
        engine: computes the loss.
        batches: makes a fresh iterator over a split's micro-batches of this rank; None where the rank reads no data.
        splits: those that hold samples.
        num_microbatches: of this rank in a global batch.
        iters: global batches.
    """

    engine: ForwardEngine
    batches: Callable[[Split], Iterator[Batch] | None]
    splits: tuple[Split, ...]
    num_microbatches: int
    iters: int

    def run(self, split: Split, iteration: int) -> EvalRecord:
        """Return loss and perplexity of a split; all ranks call it together."""
        batches = self.batches(split)
        loss = self.engine.evaluate(batches, self.num_microbatches, self.iters)
        return EvalRecord.of(split, iteration, loss.item())


@dataclass(frozen=True, slots=True)
class Evaluations(Event):
    """Evaluates the validation split at an interval, and all splits at the end.

    Attributes:
        training: which is evaluated.
        evaluation: of the recipe's samples.
        is_pending: the run stopped after the loaded checkpoint but before its evaluation.
    """

    training: Training
    evaluation: Evaluation
    is_pending: bool = False

    def begin(self) -> None:
        """Evaluate what was loaded, if that is pending."""
        if self.is_pending:
            self._evaluate("valid")

    def after_iteration(self, due: Due) -> bool:
        """Evaluate if it is due."""
        if due.evaluation:
            self._evaluate("valid")
        return False

    def end(self, reason: str) -> None:
        """Evaluate all splits, unless the training stopped early."""
        target = self.training.recipe.evaluation.target_loss
        for split in () if reason else self.evaluation.splits:
            record = self._evaluate(split)
            if split == "valid" and target is not None:
                self.training.meter.logger.note(verdict(target, record))

    def _evaluate(self, split: Split) -> EvalRecord:
        meter, progress = self.training.meter, self.training.progress
        with meter.pausing():
            with meter.timers.phase("evaluation"):
                record = self.evaluation.run(split, progress.iteration)
            meter.logger.evaluation(record, progress.consumed_samples)
        return record


def evaluation_pending(recipe: Recipe, logger: RunLogger, progress: Progress) -> bool:
    """Say whether an evaluation was due after the loaded checkpoint and is not logged; all ranks call it together."""
    every, done = recipe.evaluation.interval, progress.iteration
    return bool(every and done and done % every == 0 and not on_rank0(partial(logger.has_evaluation, "valid", done)))


def verdict(target_loss: float, reached: EvalRecord) -> str:
    """Return the line that says whether the validation loss at the end of a run is at most `target_loss`."""
    met = reached.lm_loss <= target_loss  # False for nan
    word = "reached" if met else "missed"
    return f"target {word}: validation loss {reached.lm_loss:.4f}, evaluation.target_loss {target_loss:g}"
