"""Size of a tokenizer whose files need not exist yet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.data.tokenizers.load import load_tokenizer

if TYPE_CHECKING:
    from pretrain.recipe.sections.data import TokenizerSection

GPT2_VOCAB_SIZE = 50257
"""Entries of GPT-2's vocabulary; used while a recipe's tokenizer does not exist yet."""


def expected_vocab_size(section: TokenizerSection) -> tuple[int, str]:
    """Return the entries of a recipe's tokenizer, and a note for the user if they are assumed.

    Args:
        section: the recipe's; its files need not exist.

    Returns:
        number of entries before padding: of the tokenizer if its files are there, else `vocab_size` of the section,
        else GPT-2's; and a line that says so, "" where the tokenizer itself was counted.

    Raises:
        DataError: a file is broken, or one that the type needs is not named.
    """
    named = [file for file in (section.vocab_file, section.merge_file, section.file) if file]
    absent = [file for file in named if not Path(file).exists()]
    if not absent:
        return load_tokenizer(section).vocab_size, ""
    size = section.vocab_size or GPT2_VOCAB_SIZE
    return size, f"tokenizer: {', '.join(absent)} not found; counting with {size} entries"
