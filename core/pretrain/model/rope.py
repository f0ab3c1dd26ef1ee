"""Frequencies of rope and the factor of its cos and sin, computed on the host in double precision."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pretrain.recipe.sections.model import ModelSection


def frequencies(model: ModelSection) -> list[float]:
    """Return the radians from one position to the next, of each pair of dimensions: rotary_size / 2 numbers.

    rotary_base^(-2 i / rotary_size) for pair i (Su et al. 2021, arXiv:2104.09864, section 3.2.2). With
    `use_rope_scaling` they are scaled as the functions of `rope_scaling_type` in transformers 5 do it
    (modeling_rope_utils.py, ROPE_INIT_FUNCTIONS); dynamic for texts of seq_length tokens.
    """
    published = _published(model.rotary_base, model.rotary_size)
    if not model.use_rope_scaling:
        return published
    match model.rope_scaling_type:
        case "llama3":
            return [_llama3(frequency, model) for frequency in published]
        case "linear":
            return [frequency / model.rope_scaling_factor for frequency in published]
        case "dynamic":
            return _published(_dynamic_base(model), model.rotary_size)
        case "yarn":
            return _yarn(published, model)


def attention_factor(model: ModelSection) -> float:
    """Return the factor of cos and sin: 1 but with yarn, and there `concentration` where the recipe gives none."""
    if not model.use_rope_scaling or model.rope_scaling_type != "yarn":
        return 1.0
    given = model.yarn_attention_factor
    return concentration(model.rope_scaling_factor) if given is None else given


def concentration(factor: float, mscale: float = 1.0, mscale_all_dim: float = 0.0) -> float:
    """Return YaRN's factor of cos and sin for waves that are stretched by a factor of at least 1.

    0.1 ln(factor) + 1 (Peng et al. 2023, arXiv:2309.00071, section 3.4); the two others are DeepSeek's, of which equal
    ones make it 1.
    """
    above, below = (0.1 * scale * math.log(max(factor, 1.0)) + 1.0 for scale in (mscale, mscale_all_dim))
    return above / below


def mscale_of(factor: float, attention_factor: float) -> float:
    """Return the mscale for which, and for mscale_all_dim 0, `concentration` is this; the factor is above 1."""
    return (attention_factor - 1.0) / (0.1 * math.log(factor))


MSCALE_DIGITS = 12
"""Decimals of a `concentration` of `mscale_of`, which comes back with other last bits."""


def _published(base: float, size: int) -> list[float]:
    return [base ** (-dimension / size) for dimension in range(0, size, 2)]


def _llama3(frequency: float, model: ModelSection) -> float:
    """Stretch waves that fit less than low times into the original length; blend up to high times.

    As apply_scaling of Llama 3.1 (meta-llama/llama-models, models/llama3/model.py).
    """
    low, high = model.rope_low_freq_factor, model.rope_high_freq_factor
    waves = model.original_max_position_embeddings * frequency / (2 * math.pi)
    kept = min(1.0, max(0.0, (waves - low) / (high - low)))
    return kept * frequency + (1.0 - kept) * frequency / model.rope_scaling_factor


def _dynamic_base(model: ModelSection) -> float:
    """Return the base with which the longest waves fit the texts, which it leaves as it is for short ones."""
    factor, size = model.rope_scaling_factor, model.rotary_size
    times = max(1.0, model.seq_length / model.original_max_position_embeddings)
    raised: float = (factor * times - (factor - 1)) ** (size / (size - 2))
    return model.rotary_base * raised


def _yarn(published: list[float], model: ModelSection) -> list[float]:
    """Stretch the pairs above the ramp, and those on it partly (arXiv:2309.00071, section 3.2)."""
    low, high = _ramp(model)
    stretched = [min(1.0, max(0.0, (pair - low) / (high - low))) for pair in range(len(published))]
    return [
        (1.0 - part) * frequency + part * frequency / model.rope_scaling_factor
        for frequency, part in zip(published, stretched, strict=True)
    ]


def _ramp(model: ModelSection) -> tuple[float, float]:
    """Return the last pair that stays as it is, and the first that is stretched by the whole factor."""
    low, high = _pair(model.yarn_beta_fast, model), _pair(model.yarn_beta_slow, model)
    if model.yarn_correction_range_round_to_int:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, model.rotary_size - 1)
    return low, high + 0.001 if low == high else high


def _pair(times: float, model: ModelSection) -> float:
    """Return the pair, in fractions, whose wave fits so many times into the original length."""
    length = model.original_max_position_embeddings / (2 * math.pi * times)
    return model.rotary_size * math.log(length) / (2 * math.log(model.rotary_base))
