"""Load the tokenizer that a recipe names, or its size while its files do not exist."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.data.tokenizers.tokenizer import ByteTokenizer
from pretrain.errors import DataError

if TYPE_CHECKING:
    from pretrain.data.tokenizers.tokenizer import NamesTokenizer, Tokenizer
    from pretrain.recipe.sections.data import TokenizerSection


def load_tokenizer(section: NamesTokenizer) -> Tokenizer:
    """Load the tokenizer of a recipe's section `tokenizer`."""
    if section.type == "bytes":
        return ByteTokenizer()
    # Imported late: reading GPT-2's files takes 0.2 s and the library 30 ms, which the byte tokenizer does not need.
    from pretrain.data.tokenizers import bpe  # noqa: PLC0415

    if section.type == "gpt2":
        return bpe.gpt2(tokenizer_file(section, "vocab_file"), tokenizer_file(section, "merge_file"))
    return bpe.huggingface(tokenizer_file(section, "file"))


def tokenizer_file(section: NamesTokenizer, key: str) -> Path:
    """Return a file that the section names; DataError if it does not."""
    given = getattr(section, key)
    if given is None:
        needed = "vocab_file and merge_file" if section.type == "gpt2" else "file"
        msg = f"a tokenizer of type {section.type} needs {needed}; {key} is not given."
        raise DataError(msg)
    return Path(given)


GPT2_VOCAB_SIZE = 50257  # entries of GPT-2's vocabulary; used while a recipe's tokenizer does not exist yet


def expected_vocab_size(section: TokenizerSection) -> tuple[int, str]:
    """Return the entries of a recipe's tokenizer, whose files need not exist, and a note if they are assumed."""
    absent = [file for file in section.files if not Path(file).exists()]
    if not absent:
        return load_tokenizer(section).vocab_size, ""
    size = section.vocab_size or GPT2_VOCAB_SIZE
    return size, f"tokenizer: {', '.join(absent)} not found; counting with {size} entries"
