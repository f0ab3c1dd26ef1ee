"""Unigram entropy of a corpus."""

from __future__ import annotations

import numpy as np

from pretrain.data.token_files.reading import TokenFile


def unigram_entropy(prefix: str, vocab_size: int, max_tokens: int = 10_000_000) -> float:
    """Return the entropy of the token frequencies, in nats per token.

    It is the loss of the best model without context: -sum of p ln p over the tokens. At most `max_tokens` tokens,
    spread over the file, are counted.

    Raises:
        DataError: the token files are missing or damaged.
    """
    counts = np.zeros(vocab_size, np.int64)
    for window in TokenFile.open(prefix).windows(max_tokens):
        counts += np.bincount(window, minlength=vocab_size)[:vocab_size]
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
