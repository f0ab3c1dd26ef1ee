"""Loss and perplexity on held-out text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pretrain.report.records import EvalRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pretrain.engine.protocol import Batch, ForwardEngine


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


def verdict(target_loss: float, reached: EvalRecord) -> str:
    """Return the line that says whether the validation loss at the end of a run is at most `target_loss`."""
    met = reached.lm_loss <= target_loss  # False for nan
    word = "reached" if met else "missed"
    return f"target {word}: validation loss {reached.lm_loss:.4f}, evaluation.target_loss {target_loss:g}"
