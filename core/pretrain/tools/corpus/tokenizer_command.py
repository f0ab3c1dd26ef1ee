"""`pretrain tokenizer`: make a tokenizer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal, assert_never

import click

from pretrain.cli.options import LocalPath
from pretrain.cli.stored_path import StoredPath

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_FILE = LocalPath(dir_okay=False)
_ON_ERROR = "A document that cannot be read (not UTF-8, no JSON) ends the command, or is left out and named."


@click.group()
def command() -> None:
    """Train a tokenizer."""


@command.command()
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=StoredPath(is_checkpoint=False))
@click.option(
    "--type",
    "kind",
    type=click.Choice(["bpe", "char"]),
    default="bpe",
    show_default=True,
    help="bpe: a byte-level BPE, as GPT-2's; char: every character of the text is a token.",
)
@click.option("--vocab-size", type=int, help="Number of tokens of a bpe, at least 257.")
@click.option("--unknown", is_flag=True, help="Of type char, a token <unk> for other characters, else an error.")
@click.option("--output", required=True, type=_FILE, help="The tokenizer.json to write.")
@click.option("--json-key", default="text", show_default=True, help="Key that holds the text of a JSONL line.")
@click.option("--on-error", type=click.Choice(["stop", "skip"]), default="stop", show_default=True, help=_ON_ERROR)
@click.option("--force", is_flag=True, help="Replace an existing file.")
def train(
    *,
    inputs: tuple[Path, ...],
    kind: Literal["bpe", "char"],
    vocab_size: int | None,
    unknown: bool,
    output: Path,
    json_key: str,
    on_error: Literal["stop", "skip"],
    force: bool,
) -> None:
    """Train a tokenizer on JSONL (.jsonl, .json) or plain text files.

    The same input gives the same file. Use it with tokenizer type huggingface.
    """
    from pretrain.tools.corpus.documents import read_texts  # noqa: PLC0415  kept out of --help

    texts = read_texts(inputs, json_key, skipped=_name_skipped if on_error == "skip" else None)
    match kind:
        case "bpe":
            if vocab_size is None or unknown:
                msg = "--type bpe needs --vocab-size, and takes no --unknown: it has a token for every byte."
                raise click.UsageError(msg)
            _train_bpe(texts, vocab_size, output, force=force)
        case "char":
            if vocab_size is not None:
                msg = "--type char takes no --vocab-size: the characters of the text are the vocabulary."
                raise click.UsageError(msg)
            _train_characters(texts, output, unknown=unknown, force=force)
        case _:
            assert_never(kind)


def _name_skipped(count: int, first: str) -> None:
    click.echo(f"left out: {count:,} malformed; the first is {first}", err=True)


def _train_characters(texts: Iterable[str], output: Path, *, unknown: bool, force: bool) -> None:
    from pretrain.data.tokenizers.characters import train_characters  # noqa: PLC0415

    size = train_characters(texts, output, unknown=unknown, force=force)
    click.echo(f"{output}: {size:,} tokens")


def _train_bpe(texts: Iterable[str], vocab_size: int, output: Path, *, force: bool) -> None:
    from pretrain.data.tokenizers.bpe import train_tokenizer  # noqa: PLC0415

    size = train_tokenizer(texts, vocab_size, output, force=force, show_progress=sys.stderr.isatty())
    click.echo(f"{output}: {size:,} tokens")
    if size < vocab_size:
        few = f"The input has too few different pairs for {vocab_size:,} tokens; one of {size:,} serves as well."
        click.echo(few, err=True)
