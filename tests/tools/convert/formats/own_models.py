"""Models in our own form: random ones, and the logits that our GPT computes with them."""

from __future__ import annotations

import zlib
from pathlib import Path

import torch

from engine import tiny
from pretrain.model.weights import global_names
from pretrain.recipe import make_recipe
from pretrain.recipe.sections.model import ModelSection
from pretrain.tools.convert.lazy_tensor import in_memory
from pretrain.tools.convert.model_weights import EXPERT_BIAS, ModelWeights, expected_shapes
from tools.convert.formats.hugging_face_models import TOKENS

SMALL = {
    "num_layers": 4,
    "hidden_size": 16,
    "num_attention_heads": 4,
    "ffn_hidden_size": 24,
    "seq_length": 8,
    "make_vocab_size_divisible_by": 2,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
}


def random_weights(vocab_size=11, **settings):
    """Return a model in bf16 with random numbers that depend on the weight's name."""
    model = ModelSection.model_validate(SMALL | settings)
    tensors = {}
    for name, shape in expected_shapes(model, vocab_size).items():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        tensors[name] = in_memory(torch.randn(shape, generator=generator).bfloat16())
    return ModelWeights(
        path=Path("made"), format="random", model=model, tensors=tensors, vocab_size=vocab_size, iteration=7,
        consumed_samples=56,
    )  # fmt: skip


def written(target, folder):
    """Write a target as a conversion does."""
    for file in target.files:
        (folder / file.name).parent.mkdir(parents=True, exist_ok=True)
        file.write(folder / file.name, lambda size: None)
    for name, content in target.small.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    assert target.finish is None
    return folder


def our_logits(weights):
    """Return the logits after TOKENS [v] of our GPT with these weights, which it must need all of."""
    section = weights.model.model_dump(exclude_unset=True) | {"make_vocab_size_divisible_by": 1}
    recipe = make_recipe(tiny.DATA | {"model": section})
    with tiny.engine_of(recipe) as engine, torch.no_grad():
        model = engine.chunks[0].module
        biases = ((name, bias) for name, bias in model.named_buffers() if name.endswith(EXPERT_BIAS))
        ours = dict([*global_names(model), *biases])
        assert ours.keys() == weights.tensors.keys()
        for name, parameter in ours.items():
            parameter.copy_(weights.tensors[name].whole())
        return engine.next_token_logits(TOKENS)
