"""Console output of rank 0: a progress bar on a terminal, one line per logged iteration elsewhere."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from pretrain.report.wording import evaluation_line, train_line

if TYPE_CHECKING:
    from pretrain.report.records import EvalRecord, TrainRecord


class _Output(Protocol):
    def train(self, record: TrainRecord) -> None: ...
    def line(self, text: str) -> None: ...
    def close(self) -> None: ...


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
        """Start the display.

        Args:
            total_iterations: the iteration at which the run ends.
            start_iteration: iterations done before, in a resumed run.
            rank: every rank but 0 is silent.
            stream: output; standard output if None.
            terminal: True draws a progress bar; None checks the stream, and, like rich, TTY_COMPATIBLE=0 for a stream
                that only looks like a terminal.
        """
        self._total = total_iterations
        self._output: _Output | None = None
        if rank != 0:
            return
        stream = stream or sys.stdout
        # mpirun gives its ranks a terminal, of which it copies every redraw into its own output.
        is_looked_at = os.environ.get("TTY_COMPATIBLE") != "0" and "OMPI_COMM_WORLD_RANK" not in os.environ
        is_terminal = stream.isatty() and is_looked_at
        if is_terminal if terminal is None else terminal:
            from pretrain.report.progress_bar import ProgressBar  # noqa: PLC0415  rich is imported only for a terminal

            self._output = ProgressBar(total_iterations, start_iteration, stream, terminal=terminal)
        else:
            self._output = _Lines(total_iterations, stream)

    def train(self, record: TrainRecord) -> None:
        """Show a logged interval."""
        if self._output:
            self._output.train(record)

    def evaluation(self, record: EvalRecord) -> None:
        """Print loss and perplexity of one split."""
        self.note(evaluation_line(record, self._total))

    def note(self, text: str) -> None:
        """Print text of one or more lines."""
        if self._output:
            self._output.line(text)

    def close(self) -> None:
        """Remove the progress bar; may be called twice."""
        if self._output:
            self._output.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Lines:
    """Plain lines, each flushed, so that a log file can be followed."""

    def __init__(self, total_iterations: int, stream: TextIO) -> None:
        self._total = total_iterations
        self._stream = stream

    def train(self, record: TrainRecord) -> None:
        self.line(train_line(record, self._total))

    def line(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        self._stream.flush()
