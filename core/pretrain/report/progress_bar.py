"""Progress bar on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from rich.console import Console as Terminal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from pretrain.report.wording import duration, number, seconds_left

if TYPE_CHECKING:
    from pretrain.report.records import TrainRecord


class ProgressBar:
    """A bar with loss, speed and time left; lines are printed above it."""

    def __init__(
        self, total_iterations: int, start_iteration: int, stream: TextIO, *, terminal: bool | None = None
    ) -> None:
        """Draw the bar at `start_iteration`; `terminal` forces the drawing on a stream that is not a terminal."""
        self._total = total_iterations
        self._progress = Progress(
            TextColumn("training"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("{task.fields[tokens]} tokens/s"),
            TextColumn("{task.fields[left]} left"),
            console=Terminal(file=stream, force_terminal=terminal, highlight=False, markup=False),
            refresh_per_second=4,
            expand=True,
        )
        self._task = self._progress.add_task(
            "training", total=total_iterations, completed=start_iteration, loss="-", tokens="-", left="-"
        )
        self._progress.start()

    def train(self, record: TrainRecord) -> None:
        """Move the bar to the record's iteration."""
        tokens_per_sample = record.consumed_tokens / max(1, record.consumed_samples)
        self._progress.update(
            self._task,
            completed=record.iteration,
            loss=number(record.metrics["lm_loss"], ".4f"),
            tokens=f"{record.metrics['samples_per_second'] * tokens_per_sample:,.0f}",
            left=duration(seconds_left(record, self._total)),
        )

    def line(self, text: str) -> None:
        """Print text above the bar, as it is."""
        self._progress.console.print(text, soft_wrap=True)

    def close(self) -> None:
        """Stop updating the bar and release the terminal."""
        self._progress.stop()
