"""`pretrain data`: build, merge and look into token files."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from pretrain.cores import available_cores
from pretrain.errors import DataError
from pretrain.recipe.sections.tokenizer import TokenizerSection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pretrain.data.documents import Chunk

_TYPES: dict[str, Literal["gpt2", "huggingface", "bytes"]] = {
    "gpt2": "gpt2",
    "huggingface": "huggingface",
    "bytes": "bytes",
    "gpt2bpetokenizer": "gpt2",
    "hftokenizer": "huggingface",
    "huggingfacetokenizer": "huggingface",
}
"""The recipe's names, and what Megatron-LM and GPT-NeoX call the same."""

_FILE = click.Path(dir_okay=False, path_type=Path)
_TOKENIZER_OPTIONS = (
    click.option("--tokenizer-type", metavar="TYPE", help="gpt2, huggingface or bytes; Megatron's names work too."),
    click.option("--vocab-file", type=_FILE, help="GPT-2's vocab.json, for type gpt2."),
    click.option("--merge-file", type=_FILE, help="GPT-2's merges.txt, for type gpt2."),
    click.option("--tokenizer-file", type=_FILE, help="A tokenizer.json, for type huggingface."),
)


def _names_tokenizer(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that `_section` reads."""
    for option in reversed(_TOKENIZER_OPTIONS):
        function = option(function)
    return function


@click.group()
def command() -> None:
    """Build, merge and look into token files (.bin and .idx, Megatron's format)."""


@command.command()
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=_FILE)
@click.option("--output-prefix", required=True, type=_FILE, help="P writes P_<json key>_document.bin and .idx.")
@_names_tokenizer
@click.option("--json-key", "--json-keys", default="text", show_default=True, help="Key that holds the text.")
@click.option("--append-eod", is_flag=True, help="End every document with the end-of-document token.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes that encode.  [default: one per core]")
@click.option("--force", is_flag=True, help="Replace existing files.")
def build(
    *,
    inputs: tuple[Path, ...],
    output_prefix: Path,
    json_key: str,
    append_eod: bool,
    workers: int | None,
    force: bool,
    **tokenizer: Any,
) -> None:
    """Encode JSONL files (plain, .gz, .xz or .bz2) into token files.

    The files are those of Megatron-LM's preprocess_data.py, byte for byte, with any number of workers.
    """
    from pretrain.data.build import build_tokens  # noqa: PLC0415  numpy is slow to import for --help

    prefix = output_prefix.with_name(f"{output_prefix.name}_{json_key}_document")
    begin = time.monotonic()
    with _progress(inputs) as progress:
        built = build_tokens(
            inputs,
            prefix,
            _section(**tokenizer),
            json_key=json_key,
            append_eod=append_eod,
            workers=workers or available_cores(),
            force=force,
            progress=progress,
        )
    click.echo(
        f"{prefix}: {built.documents:,} documents, {built.tokens:,} tokens of {built.token_bytes} bytes, "
        f"{time.monotonic() - begin:.1f} s"
    )


@command.command()
@click.argument("prefix", type=_FILE)
@_names_tokenizer
def inspect(*, prefix: Path, **tokenizer: Any) -> None:
    """Describe PREFIX.bin and PREFIX.idx and check that they are whole; with a tokenizer, show how the text begins."""
    from pretrain.data.inspection import inspect_tokens  # noqa: PLC0415  numpy is slow to import for --help
    from pretrain.data.tokenizers import load_tokenizer  # noqa: PLC0415

    loaded = load_tokenizer(_section(**tokenizer)) if any(tokenizer.values()) else None
    for line in inspect_tokens(_without_suffix(prefix), loaded):
        click.echo(line)


@command.command()
@click.argument("prefixes", metavar="PREFIX...", nargs=-1, required=True, type=_FILE)
@click.option("--output-prefix", required=True, type=_FILE, help="P writes P.bin and P.idx.")
@click.option("--force", is_flag=True, help="Replace existing files.")
def merge(*, prefixes: tuple[Path, ...], output_prefix: Path, force: bool) -> None:
    """Join token files of one tokenizer into one pair, in the order given."""
    from pretrain.data.merging import merge_tokens  # noqa: PLC0415  numpy is slow to import for --help

    built = merge_tokens([Path(_without_suffix(prefix)) for prefix in prefixes], output_prefix, force=force)
    click.echo(f"{output_prefix}: {built.documents:,} documents, {built.tokens:,} tokens")


def _section(
    *, tokenizer_type: str | None, vocab_file: Path | None, merge_file: Path | None, tokenizer_file: Path | None
) -> TokenizerSection:
    given = tokenizer_type or ("huggingface" if tokenizer_file else "gpt2" if vocab_file else None)
    if given is None or given.lower() not in _TYPES:
        msg = f"--tokenizer-type is {given or 'missing'}; it is gpt2, huggingface or bytes."
        raise DataError(msg)
    files = {"vocab_file": vocab_file, "merge_file": merge_file, "file": tokenizer_file}
    named = {key: str(path) for key, path in files.items() if path is not None}
    return TokenizerSection.model_validate({"type": _TYPES[given.lower()], **named})


def _without_suffix(prefix: Path) -> str:
    """Accept the name of either file, as a shell completes it."""
    return str(prefix.with_suffix("") if prefix.suffix in {".bin", ".idx"} else prefix)


@contextmanager
def _progress(inputs: Sequence[Path]) -> Iterator[Callable[[Chunk], None]]:
    """Show a bar over the bytes read, on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415  rich is imported only for a terminal
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn  # noqa: PLC0415

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    read: dict[Path, int] = {}
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=sum(path.stat().st_size for path in inputs if path.is_file()))

        def show(chunk: Chunk) -> None:
            read[chunk.path] = chunk.position
            bar.update(task, completed=sum(read.values()))

        yield show
