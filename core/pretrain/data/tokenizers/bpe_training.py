"""Train a byte-level BPE tokenizer, as GPT-2's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from pretrain.atomic_files import refuse_existing, replacing
from pretrain.data.tokenizers.files import LARGEST_VOCAB
from pretrain.data.tokenizers.tokenizer import END_OF_DOCUMENT
from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SMALLEST_VOCAB = 257
"""The 256 bytes and the end of a document."""


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, output: Path, *, force: bool = False, show_progress: bool = False
) -> int:
    """Train a tokenizer on `texts`, write it as a tokenizer.json, and return its number of tokens.

    Token 0 is "<|endoftext|>", 1 to 256 are the bytes, then come the merges. The same texts give the same file. The
    number of tokens is less than `vocab_size` if the texts have fewer different pairs to merge.

    Args:
        texts: training text; read once, not kept.
        vocab_size: desired number of tokens, 257 to 4,194,304.
        output: the file; read it with type huggingface.
        force: replace an existing file.
        show_progress: draw a progress bar on stderr.

    Raises:
        DataError: the vocabulary is too small or too large, there is no text, or the file exists or cannot be written.
    """
    if vocab_size < SMALLEST_VOCAB:
        msg = f"a vocabulary of {vocab_size} tokens is too small.\nThe 256 bytes and {END_OF_DOCUMENT} need 257."
        raise DataError(msg)
    if vocab_size > LARGEST_VOCAB:
        msg = f"a vocabulary of {vocab_size:,} tokens is too large; give at most {LARGEST_VOCAB:,}."
        raise DataError(msg)
    refuse_existing([output], force=force)
    codec = tokenizers.Tokenizer(models.BPE())
    codec.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    codec.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=show_progress,
    )
    codec.train_from_iterator(_not_empty(texts), trainer)
    with replacing(output) as stream:
        stream.write(codec.to_str(pretty=True).encode())
    return int(codec.get_vocab_size())


def _not_empty(texts: Iterable[str]) -> Iterable[str]:
    found = False
    for text in texts:
        found = found or bool(text)
        yield text
    if not found:
        msg = "there is no text to train a tokenizer on."
        raise DataError(msg)
