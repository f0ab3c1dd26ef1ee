"""Progress of a build: a bar on a terminal, elsewhere a line every half minute."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pretrain.tools.corpus.build import Progress

_LINE_EVERY = 30.0
"""Seconds between two lines in a log."""


@contextmanager
def shown_progress() -> Iterator[Callable[[Progress], None]]:
    """Yield the function that `build_tokens` calls with its progress."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console  # noqa: PLC0415  rich is imported only for a terminal
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn  # noqa: PLC0415
    from rich.progress import Progress as Bar  # noqa: PLC0415

    documents = TextColumn("{task.fields[documents]:,} documents")
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), documents, TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, documents=0)

        def show(progress: Progress) -> None:
            bar.update(task, total=progress.total, completed=progress.read, documents=progress.written.documents)

        yield show


class _Lines:
    """Prints a line to stderr every half minute."""

    def __init__(self) -> None:
        self._begun = self._last_shown = time.monotonic()
        self._read_before: int | None = None

    def __call__(self, progress: Progress) -> None:
        if self._read_before is None:
            self._read_before = progress.read if progress.continued else 0
            if progress.continued:
                click.echo(f"continuing an interrupted build at {progress.read / 1e6:,.1f} MB", err=True)
        now = time.monotonic()
        if now - self._last_shown >= _LINE_EVERY:
            self._last_shown = now
            speed = max(progress.read - self._read_before, 1) / max(now - self._begun, 1e-9)
            click.echo(
                f"{progress.read / 1e6:,.0f} of {progress.total / 1e6:,.0f} MB, {speed / 1e6:.1f} MB/s, "
                f"{progress.written.documents:,} documents, {(progress.total - progress.read) / speed:,.0f} s left",
                err=True,
            )
