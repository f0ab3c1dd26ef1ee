"""Structure of a model: the settings that its weights depend on, and what is computed with them."""

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


def structure(model: ModelSection) -> dict[str, Any]:
    """Return these settings by the keys of a recipe's section `model`."""
    return {name: getattr(model, name) for name in ModelSection.model_fields if name not in _OF_THE_TRAINING}
