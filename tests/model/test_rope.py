"""Frequencies of rope, as Llama 3.1 and Hugging Face publish them."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine import tiny
from engine.layouts import QWEN, STAGE
from model import plain
from pretrain.model.gpt import Rotations, frequencies
from pretrain.recipe.sections.model import ModelSection

LLAMA3 = {"num_layers": 1, "hidden_size": 4096, "num_attention_heads": 32, "seq_length": 8192, "rotary_base": 5e5}
LLAMA31 = {"use_rope_scaling": True}
LLAMA32_1B = {"use_rope_scaling": True, "rope_scaling_factor": 32.0, "hidden_size": 2048}
OTHER = {
    "use_rope_scaling": True,
    "rope_low_freq_factor": 2.0,
    "rope_high_freq_factor": 16.0,
    "original_max_position_embeddings": 4096,
    "rotary_percent": 0.5,
}
MODELS = pytest.mark.parametrize(
    "given", [{}, LLAMA31, LLAMA32_1B, OTHER], ids=["Llama 3", "Llama 3.1", "Llama 3.2", "other factors"]
)


def model(given):
    return ModelSection(**LLAMA3 | {"position_embedding_type": "rope"} | given)


@MODELS
def test_fp32_frequencies_are_the_published_ones(given):
    section = model(given)
    expected = plain.frequencies(section.rotary_size, section)
    ours = torch.tensor(frequencies(section), dtype=torch.float32)
    torch.testing.assert_close(ours.double(), expected, rtol=1e-6, atol=0)


@MODELS
def test_the_sine_of_the_first_position_is_that_of_the_frequencies(given):
    section = model(given)
    sine = Rotations(section)(2)[1, 1, 0, 0].double()
    expected = plain.frequencies(section.rotary_size, section).sin()
    torch.testing.assert_close(sine, expected.repeat(2), rtol=1e-6, atol=0)


@MODELS
def test_hugging_face_has_the_same_in_fp32(given):
    section = model(given)
    config = transformers.LlamaConfig(
        hidden_size=section.hidden_size,
        num_attention_heads=section.num_attention_heads,
        max_position_embeddings=131072,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": section.rotary_base,
            "partial_rotary_factor": section.rotary_percent,
            "factor": section.rope_scaling_factor if section.use_rope_scaling else 1.0,
            "low_freq_factor": section.rope_low_freq_factor,
            "high_freq_factor": section.rope_high_freq_factor,
            "original_max_position_embeddings": section.original_max_position_embeddings,
        },
    )
    theirs, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    # They compute in fp32: an exponent's last bit is some 1e-6 of a power, and more after the subtraction in blending.
    torch.testing.assert_close(torch.tensor(frequencies(section)), theirs, rtol=1e-5, atol=0)


def test_short_waves_stay_and_long_ones_are_stretched():
    scaled, plainly = frequencies(model(LLAMA31)), frequencies(model({}))
    ratios = [before / after for before, after in zip(plainly, scaled, strict=True)]
    assert ratios == sorted(ratios)
    assert (ratios.count(1.0), ratios.count(8.0)) == (29, 29)  # of 64; the six between are blended


def test_a_model_that_zero_3_makes_in_16_bits_turns_by_the_same_angles():
    """deepspeed.zero.Init makes floating-point tensors in the recipe's dtype, positions and frequencies too."""
    recipe = tiny.tiny(*QWEN, *STAGE[3], "precision.dtype=bf16")
    with tiny.engine_of(recipe) as engine:
        turns = engine.model.rotary_pos_emb(32)
    assert torch.equal(turns, Rotations(recipe.model)(32))
