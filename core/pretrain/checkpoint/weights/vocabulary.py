"""The size of a vocabulary, with padding and without."""

from __future__ import annotations

_LEAST = 1024
"""Rows beyond a tokenizer's tokens that need no explanation: Qwen 2 has 293, GPT-NeoX-20B 155."""

_MULTIPLE, _MOST_RANKS = 128, 64
"""Megatron-LM's --make-vocab-size-divisible-by, and the tensor-parallel ranks up to which it is multiplied."""


def is_padded(tokens: int, rows: int) -> bool:
    """Say whether so many rows of an embedding may be those of a tokenizer with so many tokens.

    Args:
        tokens: of the tokenizer.
        rows: of the embedding.
    """
    if not tokens <= rows < 2 * tokens:
        return False
    multiples = [_MULTIPLE * 2**power for power in range(_MOST_RANKS.bit_length())]
    return rows - tokens < _LEAST or any(rows == -(-tokens // each) * each for each in multiples)
