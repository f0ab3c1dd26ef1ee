"""`pretrain tokenizer`: make a tokenizer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from pretrain.cli.options import LocalPath
from pretrain.cli.stored_path import StoredPath

if TYPE_CHECKING:
    from pathlib import Path

_FILE = LocalPath(dir_okay=False)


@click.group()
def command() -> None:
    """Train a tokenizer."""


@command.command()
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=StoredPath(is_checkpoint=False))
@click.option("--vocab-size", required=True, type=int, help="Number of tokens, at least 257.")
@click.option("--output", required=True, type=_FILE, help="The tokenizer.json to write.")
@click.option("--json-key", default="text", show_default=True, help="Key that holds the text of a JSONL line.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
def train(*, inputs: tuple[Path, ...], vocab_size: int, output: Path, json_key: str, force: bool) -> None:
    """Train a byte-level BPE, as GPT-2's, on JSONL (.jsonl, .json) or plain text files.

    The same input gives the same file. Use it with tokenizer type huggingface.
    """
    from pretrain.data.tokenizers.bpe import train_tokenizer  # noqa: PLC0415
    from pretrain.tools.corpus.documents import read_texts  # noqa: PLC0415  kept out of --help

    texts = read_texts(inputs, json_key)
    size = train_tokenizer(texts, vocab_size, output, force=force, show_progress=sys.stderr.isatty())
    click.echo(f"{output}: {size:,} tokens")
    if size < vocab_size:
        click.echo(f"The input has too few different pairs for {vocab_size:,} tokens.", err=True)
