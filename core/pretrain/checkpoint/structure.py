"""Structure of a model: the settings that its weights depend on, and what is computed with them; its vocabulary."""

from __future__ import annotations

from typing import Any

from pretrain.recipe.sections.model import ModelSection

_OF_THE_TRAINING = {
    "seq_length",
    "hidden_dropout",
    "attention_dropout",
    "init_method",
    "init_method_std",
    "output_layer_init_method",
    "apply_query_key_layer_scaling",
    "attention_softmax_in_fp32",
    "make_vocab_size_divisible_by",
}
"""Settings that a checkpoint's weights may be used without; every other one is part of the structure."""

_LEAST = 1024
"""Rows beyond a tokenizer's tokens that need no explanation: Qwen 2 has 293, GPT-NeoX-20B 155."""

_MULTIPLE, _MOST_RANKS = 128, 64
"""Megatron-LM's --make-vocab-size-divisible-by, and the tensor-parallel ranks up to which it is multiplied."""


def structure(model: ModelSection) -> dict[str, Any]:
    """Return these settings by the keys of a recipe's section `model`."""
    return {name: getattr(model, name) for name in ModelSection.model_fields if name not in _OF_THE_TRAINING}


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
