"""Check the data against the recipe, before anything slow or collective happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.data.token_files.fingerprint import check_fingerprint
from pretrain.data.token_files.inspection import check_ids
from pretrain.data.token_files.reading import TokenFile, split_range
from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.data.tokenizers import Tokenizer

_SPLITS = ("train", "valid", "test")


def check_token_files(
    prefix: str,
    tokenizer: Tokenizer,
    split_matrix: Sequence[tuple[float, float] | None],
    needed: Sequence[int],
    seq_length: int,
) -> None:
    """Check one pair of token files against the recipe.

    Args:
        prefix: path without .bin and .idx.
        tokenizer: the recipe's.
        split_matrix: begin and end of each split as a share of the sequences.
        needed: samples that are read from each split.
        seq_length: tokens of a sample.

    Raises:
        DataError: the files are missing or damaged, were made with another tokenizer, or a split that is read holds
            fewer tokens than one sample.
    """
    tokens = TokenFile.open(prefix)
    check_fingerprint(prefix, tokenizer)
    check_ids(tokens, tokenizer.vocab_size)
    for name, bounds, samples in zip(_SPLITS, split_matrix, needed, strict=True):
        if samples:
            _check_split(tokens, name, bounds or (0.0, 0.0), seq_length)


def _check_split(tokens: TokenFile, name: str, bounds: tuple[float, float], seq_length: int) -> None:
    sequences = split_range(bounds, tokens.lengths.size)
    available = tokens.tokens_in(sequences)
    if available <= seq_length:
        msg = (
            f"{tokens.prefix}: split '{name}' has {len(sequences)} of {tokens.lengths.size} documents with {available} "
            f"tokens, fewer than one sample of {seq_length} + 1.\n"
            "Give more text, another data.split or a smaller model.seq_length; evaluation.interval: 0 reads only train."
        )
        raise DataError(msg)
