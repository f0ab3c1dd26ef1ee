"""metrics.jsonl of the run directory as a logger; the one that every run has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.errors import RunError
from pretrain.plugins.logger import Logger
from pretrain.report.metrics import FILE, MetricsWriter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from pretrain.plugins.logger import LoggedEvent, Metrics, Point, Run


class MetricsFile(Logger):
    """Append a line for each record, in the thread of the training: it is there when the iteration is logged."""

    def __init__(self, run: Run) -> None:
        resumed = run.resumed
        self._note, self._fails = run.note, False
        self._writer = MetricsWriter(
            run.directory / FILE,
            resume_at=None if resumed is None else resumed.iteration,
            left_out=() if resumed is None else resumed.left_out,
        )

    def has_evaluation(self, line: Mapping[str, Any]) -> bool:
        """Return `MetricsWriter.has_evaluation`."""
        return self._writer.has_evaluation(line)

    def metrics(self, metrics: Metrics) -> None:
        """Append the line; of timers there is none."""
        if metrics.line:
            self._append(metrics.line)

    def event(self, event: LoggedEvent) -> None:
        """Append the line, if the event has one."""
        if event.line:
            self._append(event.line)

    def go_back(self, to: Point) -> None:
        """Drop the lines of later iterations."""
        try:
            self._writer.go_back(to.iteration, to.left_out)
        except RunError as error:
            self._note(
                f"warning: {str(error).splitlines()[0]} Its lines after iteration {to.iteration} stay, and will be "
                "there twice. The training continues."
            )

    def finish(self, *, failed: bool) -> None:  # noqa: ARG002  a logger's signature
        """Close the file."""
        self._writer.close()

    def _append(self, line: Mapping[str, Any]) -> None:
        """Append a line; one for which there is no room is lost."""
        try:
            self._writer.append(line)
        except OSError as error:
            if not self._fails:
                self._fails = True
                self._note(
                    f"warning: {FILE} cannot be written ({error.strerror}): lines are lost until it can be. The "
                    "training continues."
                )
