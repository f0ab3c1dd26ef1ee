"""`pretrain data build`: the build, its progress and its summary."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from pretrain.cores import available_cores
from pretrain.errors import DataError
from pretrain.tools.corpus.build import build_tokens
from pretrain.tools.corpus.cleaning import Cleaning
from pretrain.tools.corpus.sharding import Shard
from pretrain.tools.corpus.unfinished import folder_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pretrain.data.tokenizers.files import NamesTokenizer
    from pretrain.tools.corpus.build import BuildProgress, Built


def build(
    *,
    section: NamesTokenizer,
    inputs: tuple[Path, ...],
    output_prefix: Path,
    json_key: str,
    append_eod: bool,
    workers: int | None,
    encoder: str,
    on_error: str,
    clean: bool,
    drop_duplicates: bool,
    min_length: int,
    shard: str | None,
    dataset_impl: str | None,  # noqa: ARG001  the only kind there is
    force: bool,
) -> None:
    """Build, show the progress, and print a summary.

    Raises:
        DataError: there is no name for the output, or the build fails.
    """
    part = Shard.parse(shard) if shard else None
    prefix = _prefix(output_prefix, json_key, part)
    begin = time.monotonic()
    try:
        with shown_progress() as progress:
            built = build_tokens(
                inputs,
                prefix,
                section,
                json_key=json_key,
                append_eod=append_eod,
                skip_faults=on_error == "skip",
                cleaning=Cleaning(clean, min_length, drop_duplicates),
                shard=part,
                workers=workers or available_cores(),
                reference_only=encoder == "tokenizers",
                force=force,
                progress=progress,
            )
    except KeyboardInterrupt:
        if folder_of(prefix).is_dir():
            click.echo(f"{folder_of(prefix)} keeps what is written: the same command continues.", err=True)
        raise
    _print_summary(built, prefix, time.monotonic() - begin)


def _prefix(output_prefix: Path, json_key: str, shard: Shard | None) -> Path:
    """Return Megatron's name of the files; characters of a key that a file name cannot hold are replaced."""
    if not output_prefix.name:
        msg = f"--output-prefix is '{output_prefix}'; it must end in a name, as in data/corpus."
        raise DataError(msg)
    key = json_key.replace("/", "_").replace("\0", "_")
    return output_prefix.with_name(f"{output_prefix.name}_{key}_document{shard.suffix if shard else ''}")


def _print_summary(built: Built, prefix: Path, seconds: float) -> None:
    tokens = f"{built.tokens:,} tokens of {built.token_bytes} bytes"
    click.echo(f"{prefix}: {built.documents:,} documents, {tokens}, {seconds:.1f} s")
    counts = built.counts
    if counts.faults:
        click.echo(f"left out: {counts.faults:,} malformed; the first is {counts.first_fault}")
    if counts.short or counts.duplicates:
        click.echo(f"left out: {counts.short:,} short documents, {counts.duplicates:,} duplicates")
    if built.compared is not None:
        texts = f"{built.compared:,} of {built.texts:,} texts"
        click.echo(f"encoded by gigatoken; {texts} were compared, and the tokenizers library gave the same")


_LINE_EVERY = 30.0
"""Seconds between two lines in a log."""


@contextmanager
def shown_progress() -> Iterator[Callable[[BuildProgress], None]]:
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

        def show(progress: BuildProgress) -> None:
            bar.update(task, total=progress.total, completed=progress.read, documents=progress.written.documents)

        yield show


class _Lines:
    """Prints a line to stderr every half minute."""

    def __init__(self) -> None:
        self._begun = self._last_shown = time.monotonic()
        self._read_before: int | None = None

    def __call__(self, progress: BuildProgress) -> None:
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
