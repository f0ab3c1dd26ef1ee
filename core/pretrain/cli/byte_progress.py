"""Progress of work that is counted in bytes: a bar on a terminal, elsewhere a line every half minute."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

_LINE_EVERY = 30.0
"""Seconds between two lines in a log."""

_UNITS = ("B", "kB", "MB", "GB", "TB")


class Advance(Protocol):
    """Shows a number of bytes more; called from several threads."""

    def __call__(self, count: int, note: str = "") -> None:
        """Show it, with a note such as a number of documents."""


class Begin(Protocol):
    """Begins to show work of so many bytes, of which some may be done."""

    def __call__(self, total: int, what: str, done: int = 0) -> Advance:
        """Begin, with a word for what is done."""


@contextmanager
def shown_bytes() -> Iterator[Begin]:
    """Yield the function with which work begins to be shown."""
    if not sys.stderr.isatty():
        yield _Lines
        return
    from rich.console import Console  # noqa: PLC0415  rich is imported only for a terminal
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn  # noqa: PLC0415

    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:

        def begin(total: int, what: str, done: int = 0) -> Advance:
            task = bar.add_task(what, total=total, completed=done)
            return lambda count, note="": bar.update(task, advance=count, description=f"{what} {note}")

        yield begin


class _Lines:
    """Prints a line to stderr every half minute."""

    def __init__(self, total: int, what: str, done: int = 0) -> None:
        self._total, self._what, self._done = total, what, done
        self._before, self._begun = done, time.monotonic()
        self._last_shown = self._begun
        self._lock = threading.Lock()

    def __call__(self, count: int, note: str = "") -> None:
        with self._lock:
            self._done += count
            now = time.monotonic()
            if now - self._last_shown < _LINE_EVERY:
                return
            self._last_shown = now
            speed = max(self._done - self._before, 1) / max(now - self._begun, 1e-9)
            left = (self._total - self._done) / speed
        done = f"{self._what} {size_text(self._done)} of {size_text(self._total)}"
        click.echo(f"{done}, {size_text(speed)}/s, {note}{', ' * bool(note)}{left:,.0f} s left", err=True)


def size_text(size: float) -> str:
    """Return a number of bytes with three digits and a decimal unit."""
    for unit in _UNITS[:-1]:
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} {_UNITS[-1]}"
