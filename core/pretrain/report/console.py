"""Console output: a progress bar on a terminal, lines elsewhere."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from typing import TYPE_CHECKING, Self, TextIO

from pretrain.report.metrics import duration, evaluation_line, number, seconds_left, task_lines, train_line
from pretrain.report.plain_text import size_text

if TYPE_CHECKING:
    from rich.progress import Progress

    from pretrain.report.metrics import EvalRecord, TaskRecord, TrainRecord

LINE_EVERY = 30.0  # seconds between two lines in a log


class ProgressBar:
    """Shows a bar and a text beside it; in a log, the text as a line each half minute."""

    def __init__(
        self, *, stream: TextIO | None = None, terminal: bool | None = None, total: float = 0, stays: bool = False
    ) -> None:
        """Draw a bar if `terminal`, print lines if not; None looks at the stream, standard error by default."""
        self._stream = sys.stderr if stream is None else stream
        self._last_line = time.monotonic()
        self._bar: Progress | None = None
        if _is_watched(self._stream) if terminal is None else terminal:
            self._bar = _bar(self._stream, force=terminal, stays=stays)
            self._task = self._bar.add_task("", total=total or None)
            self._bar.start()

    def show(self, done: float, total: float, text: str, *, log_line: str | None = None) -> None:
        """Move the bar; in a log print the text if it is time for a line, or `log_line` in any case."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, description=text)
        elif log_line is not None:
            self.print(log_line)
        elif time.monotonic() - self._last_line >= LINE_EVERY:
            self._last_line = time.monotonic()
            self.print(text)

    @property
    def is_drawn(self) -> bool:
        """True on a terminal, False in a log."""
        return self._bar is not None

    def print(self, text: str) -> None:
        """Print text as it is, above the bar; at once, so that a log can be followed."""
        if self._bar is not None:
            self._bar.console.print(text, soft_wrap=True)
        else:
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Stop updating the bar and release the terminal; may be called twice."""
        if self._bar is not None:
            self._bar.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ByteCount:
    """Counts the bytes of one piece of work and shows them on a bar; several threads may count."""

    def __init__(
        self, bar: ProgressBar, total: int, what: str = "", *, done: int = 0, begun: float | None = None
    ) -> None:
        """Start at `done`, which earlier work has done; `begun` is when by `time.monotonic`, now if None."""
        self._bar, self._total, self._what = bar, total, what
        self._done = self._begun_at = done
        self._begun, self._lock = time.monotonic() if begun is None else begun, threading.Lock()

    def __call__(self, count: int) -> None:
        """Add bytes."""
        with self._lock:
            self.reach(self._done + count)

    def reach(self, done: int, note: str = "") -> None:
        """Show so many bytes; called by one thread."""
        self._done = done
        speed = max(done - self._begun_at, 1) / max(time.monotonic() - self._begun, 1e-9)
        counted = f"{self._what} {size_text(done)} of {size_text(self._total)}".lstrip()
        left = f"{duration((self._total - done) / speed)} left"
        self._bar.show(done, self._total, ", ".join(filter(None, (counted, f"{size_text(speed)}/s", note, left))))


def _is_watched(stream: TextIO) -> bool:
    """Return False for a log behind a terminal, such as the one that mpirun gives its ranks."""
    is_log = os.environ.get("TTY_COMPATIBLE") == "0" or "OMPI_COMM_WORLD_RANK" in os.environ
    return stream.isatty() and not is_log


def _bar(stream: TextIO, *, force: bool | None, stays: bool) -> Progress:
    state = random.getstate()
    from rich import console as rich_console  # noqa: PLC0415  rich is imported only for a terminal
    from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415

    random.setstate(state)  # rich.style draws a number when it is imported; checkpoints have the state
    console = rich_console.Console(file=stream, force_terminal=force, highlight=False, markup=False)
    columns = BarColumn(bar_width=None), TextColumn("{task.description}", markup=False)
    return Progress(*columns, console=console, refresh_per_second=4, expand=True, transient=not stays)


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

    def task(self, record: TaskRecord) -> None:
        """Print the numbers of a task."""
        self.note("\n".join(task_lines(record, self._total)))

    def note(self, text: str) -> None:
        """Print text of one or more lines."""
        if self._bar is not None:
            self._bar.print(text)

    def close(self) -> None:
        """Stop the progress bar; may be called twice."""
        if self._bar is not None:
            self._bar.close()
