"""Progress of work that is counted in bytes: a bar on a terminal, elsewhere a line every half minute."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_LINE_EVERY = 30.0
"""Seconds between two lines in a log."""


@contextmanager
def shown_bytes() -> Iterator[Callable[[int, str], Callable[[int], None]]]:
    """Yield a function that takes the total and what is done, and returns what is called with each number of bytes."""
    if not sys.stderr.isatty():
        yield _Lines
        return
    from rich.console import Console  # noqa: PLC0415  rich is imported only for a terminal
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn  # noqa: PLC0415

    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:

        def begin(total: int, what: str) -> Callable[[int], None]:
            task = bar.add_task(what, total=total)
            return lambda count: bar.advance(task, count)

        yield begin


class _Lines:
    """Prints a line to stderr every half minute; called from several threads."""

    def __init__(self, total: int, what: str) -> None:
        self._total, self._what = total, what
        self._done = 0
        self._begun = self._last_shown = time.monotonic()
        self._lock = threading.Lock()

    def __call__(self, count: int) -> None:
        with self._lock:
            self._done += count
            now = time.monotonic()
            if now - self._last_shown < _LINE_EVERY:
                return
            self._last_shown = now
            speed = max(self._done, 1) / max(now - self._begun, 1e-9)
            left = (self._total - self._done) / speed
        done = f"{self._what} {size_text(self._done)} of {size_text(self._total)}"
        click.echo(f"{done}, {size_text(speed)}/s, {left:,.0f} s left", err=True)


_UNITS = ("B", "kB", "MB", "GB", "TB")


def size_text(size: float) -> str:
    """Return a number of bytes with three digits and a decimal unit."""
    for unit in _UNITS[:-1]:
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} {_UNITS[-1]}"
