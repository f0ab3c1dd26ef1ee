"""Writes curves.csv into the run directory: a line "iteration,curve,value" for each number."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any

from pretrain.errors import RunError
from pretrain.plugins import hookimpl
from pretrain.plugins.logger import Logger

if TYPE_CHECKING:
    from pretrain.plugins.logger import LoggedEvent, Metrics, Point, Run
    from pretrain.recipe import Recipe


@hookimpl
def pretrain_logger(recipe: Recipe, run: Run) -> Logger:
    return CsvLogger(run, **recipe.logging.logger_options.get("csv", {}))


class CsvLogger(Logger):
    def __init__(self, run: Run, file: str = "curves.csv", **unknown: Any) -> None:
        self._path, self._resumed, self._unknown = run.directory / file, run.resumed, unknown

    def check(self) -> None:
        if self._unknown:
            msg = f"logging.logger_options: csv has no {', '.join(self._unknown)}.\nAllowed: file."
            raise RunError(msg)

    def start(self) -> None:
        if self._resumed is not None and self._path.exists():
            self.go_back(self._resumed)
        else:
            self._path.write_text("iteration,curve,value\n")

    def metrics(self, metrics: Metrics) -> None:
        self._append((metrics.iteration, name, value) for name, value in metrics.curves.items())

    def event(self, event: LoggedEvent) -> None:
        self._append([(event.iteration, event.name, " ".join(event.text.splitlines()))])

    def go_back(self, to: Point) -> None:
        head, *lines = self._path.read_text().splitlines(keepends=True)
        kept = [line for line in lines if int(line.partition(",")[0]) <= to.iteration]
        self._path.write_text("".join([head, *kept]))

    def _append(self, rows: Any) -> None:
        with self._path.open("a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
