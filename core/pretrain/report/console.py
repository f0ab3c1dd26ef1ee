"""Console output of rank 0: a progress bar on a terminal, one line per logged iteration elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Self, TextIO

from pretrain.report.progress_bar import ProgressBar
from pretrain.report.records import duration, evaluation_line, number, seconds_left, train_line

if TYPE_CHECKING:
    from pretrain.report.records import EvalRecord, TrainRecord


class Console:
    """Show the progress of a run. Made on every rank; only rank 0 prints."""

    def __init__(
        self,
        total_iterations: int,
        *,
        start_iteration: int = 0,
        rank: int = 0,
        stream: TextIO | None = None,
        terminal: bool | None = None,
    ) -> None:
        self._total = total_iterations
        self._bar: ProgressBar | None = None
        if rank == 0:
            stream = stream or sys.stdout
            self._bar = ProgressBar(stream=stream, terminal=terminal, total=total_iterations, stays=True)
            if self._bar.is_drawn:
                self._bar.show(start_iteration, total_iterations, f"training {start_iteration}/{total_iterations}")

    def train(self, record: TrainRecord) -> None:
        """Show a logged interval."""
        if self._bar is None:
            return
        total = self._total
        tokens = record.metrics["samples_per_second"] * record.consumed_tokens / max(1, record.consumed_samples)
        text = (
            f"training {record.iteration}/{total} loss {number(record.metrics['lm_loss'], '.4f')} "
            f"{tokens:,.0f} tokens/s {duration(seconds_left(record, total))} left"
        )
        self._bar.show(record.iteration, total, text, log_line=train_line(record, total))

    def evaluation(self, record: EvalRecord) -> None:
        """Print loss and perplexity of one split."""
        self.note(evaluation_line(record, self._total))

    def note(self, text: str) -> None:
        """Print text of one or more lines."""
        if self._bar is not None:
            self._bar.print(text)

    def close(self) -> None:
        """Stop the progress bar; may be called twice."""
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
