"""Frequencies of rope, and the factor of its cos and sin, as Llama 3.1 and Hugging Face publish them."""

from __future__ import annotations

import math

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine import tiny
from engine.layouts import QWEN, STAGE
from model import plain
from pretrain.model.gpt import Rotations
from pretrain.model.rope import attention_factor, concentration, frequencies
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


def scaled(kind, factor, original, **more):
    return {
        "use_rope_scaling": True,
        "rope_scaling_type": kind,
        "rope_scaling_factor": factor,
        "original_max_position_embeddings": original,
    } | more


QWEN25 = scaled("yarn", 4.0, 32768, rotary_base=1e6)
DEEPSEEK = scaled("yarn", 40.0, 4096, rotary_base=1e4, yarn_attention_factor=1.0)
GPT_OSS = scaled("yarn", 32.0, 4096, rotary_base=1.5e5, kv_channels=64, yarn_correction_range_round_to_int=False)
OF_TYPES = {
    "default": {},
    "Llama 3.1": LLAMA31,
    "Llama 3.2": LLAMA32_1B,
    "llama3, other factors": OTHER,
    "linear": scaled("linear", 4.0, 8192),
    "linear, half of a head": scaled("linear", 2.5, 8192, rotary_percent=0.5),
    "dynamic, twice as long": scaled("dynamic", 2.0, 4096),
    "dynamic, of 5 times": scaled("dynamic", 4.0, 1600, kv_channels=80, rotary_percent=0.25),
    "dynamic, no longer": scaled("dynamic", 2.0, 8192),
    "dynamic, shorter": scaled("dynamic", 2.0, 16384),
    "yarn of Qwen 2.5 and 3": QWEN25,
    "yarn of DeepSeek": DEEPSEEK,
    "yarn of gpt-oss": GPT_OSS,
    "yarn, other factors": scaled(
        "yarn", 16.0, 2048, yarn_beta_fast=64.0, yarn_beta_slow=0.5, yarn_attention_factor=1.5, rotary_percent=0.5
    ),
    "yarn, a length in which no wave fits": scaled("yarn", 8.0, 4),
    "yarn, nothing longer": scaled("yarn", 1.0, 8192),
}
NAMES = {
    "rope_low_freq_factor": "low_freq_factor",
    "rope_high_freq_factor": "high_freq_factor",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
    "yarn_attention_factor": "attention_factor",
    "yarn_correction_range_round_to_int": "truncate",
}
"""Key -> its name in transformers' rope_parameters; each type reads its own alone."""


def config_of(section, **more):
    """Return the same as a configuration of transformers, whose dynamic takes max_position_embeddings."""
    kind = section.rope_scaling_type if section.use_rope_scaling else "default"
    return transformers.LlamaConfig(
        hidden_size=section.hidden_size,
        num_attention_heads=section.num_attention_heads,
        head_dim=section.kv_channels,
        max_position_embeddings=section.original_max_position_embeddings if kind == "dynamic" else 131072,
        rope_parameters={
            "rope_type": kind,
            "rope_theta": section.rotary_base,
            "partial_rotary_factor": section.rotary_percent,
            "factor": section.rope_scaling_factor,
            "original_max_position_embeddings": section.original_max_position_embeddings,
            **{theirs: getattr(section, ours) for ours, theirs in NAMES.items()},
            **more,
        },
    )


@pytest.mark.parametrize("given", OF_TYPES.values(), ids=OF_TYPES)
def test_hugging_face_has_the_same_in_fp32(given):
    section = model(given)
    config = config_of(section)
    # a factor of 1 in its llama3 is no scaling; the function for "default" is a method of each of its models
    if not section.use_rope_scaling:
        config.rope_parameters |= {"factor": 1.0}
    kind = config.rope_parameters["rope_type"].replace("default", "llama3")
    theirs, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=section.seq_length)
    # They compute in fp32: an exponent's last bit is some 1e-6 of a power, and more after the subtraction in blending.
    torch.testing.assert_close(torch.tensor(frequencies(section)), theirs, rtol=1e-5, atol=0)
    assert attention_factor(section) == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("name", ["linear", "dynamic, twice as long", "yarn of Qwen 2.5 and 3", "yarn of gpt-oss"])
def test_cos_and_sin_are_hugging_faces(name):
    section = model(OF_TYPES[name])
    positions = torch.arange(section.seq_length)[None]
    theirs = torch.stack(LlamaRotaryEmbedding(config_of(section))(torch.zeros(1), positions))[:, 0]
    ours = Rotations(section)(section.seq_length)[:, :, 0, 0]
    # An angle is up to 8191 radians, of which both round the frequency in fp32: 8191 x 6e-8, and theirs some more.
    torch.testing.assert_close(ours, theirs, rtol=0, atol=8e-3)
    torch.testing.assert_close(ours[:, :16], theirs[:, :16], rtol=0, atol=2e-5)


def test_yarns_factor_is_that_of_mscale_and_mscale_all_dim():
    for both in ((1.0, 1.0), (0.707, 0.707), (1.0, 0.5)):
        config = config_of(model(QWEN25), attention_factor=None, mscale=both[0], mscale_all_dim=both[1])
        _, factor = ROPE_INIT_FUNCTIONS["yarn"](config, torch.device("cpu"))
        assert concentration(4.0, *both) == pytest.approx(factor, rel=1e-12)
    assert attention_factor(model(QWEN25)) == 0.1 * math.log(4) + 1


def test_short_waves_stay_and_long_ones_are_stretched():
    scaled, plainly = frequencies(model(LLAMA31)), frequencies(model({}))
    ratios = [before / after for before, after in zip(plainly, scaled, strict=True)]
    assert ratios == sorted(ratios)
    assert (ratios.count(1.0), ratios.count(8.0)) == (29, 29)  # of 64; the six between are blended


def test_dynamic_makes_the_longest_wave_longer_by_how_much_longer_texts_are():
    longest = frequencies(model({}))[-1] / frequencies(model(scaled("dynamic", 3.0, 2048)))[-1]
    assert longest == pytest.approx(1 + 3.0 * (8192 / 2048 - 1))


def test_a_model_that_zero_3_makes_in_16_bits_turns_by_the_same_angles():
    """deepspeed.zero.Init makes floating-point tensors in the recipe's dtype, positions and frequencies too."""
    recipe = tiny.tiny(*QWEN, *STAGE[3], "precision.dtype=bf16")
    with tiny.engine_of(recipe) as engine:
        turns = engine.model.rotary_pos_emb(32)
    assert torch.equal(turns, Rotations(recipe.model)(32))
