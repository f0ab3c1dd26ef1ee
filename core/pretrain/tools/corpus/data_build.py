"""`pretrain data build`: the build, its progress and its summary."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from pretrain.errors import DataError
from pretrain.machine import available_cores
from pretrain.report.console import ByteCount, ProgressBar
from pretrain.report.plain_text import size_text
from pretrain.tools.corpus.build import build_tokens
from pretrain.tools.corpus.cleaning import Cleaning
from pretrain.tools.corpus.sharding import Shard
from pretrain.tools.corpus.unfinished import folder_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pretrain.data.tokenizers.tokenizer import NamesTokenizer
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
        with ProgressBar() as bar:
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
                progress=_shown_on(bar),
            )
    except KeyboardInterrupt:
        if folder_of(prefix).is_dir():
            click.echo(f"{folder_of(prefix)} keeps what is written: the same command continues.", err=True)
        raise
    _print_summary(built, prefix, time.monotonic() - begin)


def _shown_on(bar: ProgressBar) -> Callable[[BuildProgress], None]:
    """Return what `build_tokens` calls with its progress."""
    count: ByteCount | None = None
    begun = time.monotonic()

    def show(progress: BuildProgress) -> None:
        nonlocal count
        if count is None:
            count = ByteCount(bar, progress.total, done=progress.read if progress.continued else 0, begun=begun)
            if progress.continued:
                bar.print(f"continuing an interrupted build at {size_text(progress.read)}")
        count.reach(progress.read, f"{progress.written.documents:,} documents")

    return show


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
