"""Bytes of a recipe's checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.data.tokenizers import load_tokenizer
from pretrain.engine.optimizers.choice import state_bytes
from pretrain.errors import DataError
from pretrain.report.flops import parameter_count

if TYPE_CHECKING:
    from pretrain.recipe import Recipe

_OF_WEIGHTS = {"fp32": 4, "bf16": 2 + 4, "fp16": 2 + 4}
"""Bytes a parameter of the weights, with the fp32 main weights where they are other ones."""


def checkpoint_bytes(recipe: Recipe) -> int | None:
    """Return the bytes of a checkpoint: weights, main weights and optimizer state of every parameter.

    None where the tokenizer cannot be read, by whose size the embedding has its rows.
    """
    try:
        # Before a run has trained its tokenizer, the recipe says how many tokens it will have.
        tokens = recipe.tokenizer.vocab_size or load_tokenizer(recipe.tokenizer).vocab_size
    except DataError:
        return None
    parameters = parameter_count(recipe.model, recipe.padded_vocab_size(tokens))
    return parameters * (_OF_WEIGHTS[recipe.precision.dtype] + state_bytes(recipe.optimizer))
