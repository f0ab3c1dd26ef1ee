"""Train a tokenizer of characters, as a tokenizer.json of the `tokenizers` library."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers

from pretrain.atomic_files import refuse_existing, replacing
from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

UNKNOWN = "<unk>"


def train_characters(texts: Iterable[str], output: Path, *, unknown: bool = False, force: bool = False) -> int:
    """Write a vocabulary of every character (Unicode code point) of `texts`, and return its number of tokens.

    The ids are those of the sorted characters, as nanoGPT's data/shakespeare_char/prepare.py numbers them. With
    `unknown` the last token is "<unk>", which stands for all other characters; without it they are an error.
    """
    refuse_existing([output], force=force)
    characters: set[str] = set()
    for text in texts:
        characters.update(text)
    if not characters:
        msg = "there is no text to take the characters of."
        raise DataError(msg)
    vocab = {token: number for number, token in enumerate([*sorted(characters), *([UNKNOWN] if unknown else [])])}
    # A BPE without merges would drop unknown characters silently; a WordLevel refuses them, also in transformers.
    model = models.WordLevel(vocab, unk_token=UNKNOWN) if unknown else models.WordLevel(vocab)
    codec = tokenizers.Tokenizer(model)
    codec.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    codec.decoder = decoders.Fuse()
    with replacing(output) as stream:
        stream.write(codec.to_str(pretty=True).encode())
    return len(vocab)
