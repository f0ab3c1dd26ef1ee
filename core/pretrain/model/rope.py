"""Rotary position embedding: frequencies, and cos and sin, computed once per sequence length."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.recipe.sections.model import ModelSection


def frequencies(model: ModelSection) -> list[float]:
    """Return the radians from one position to the next, of each pair of dimensions: rotary_size / 2 numbers.

    rotary_base^(-2 i / rotary_size) for pair i (Su et al. 2021, arXiv:2104.09864, section 3.2.2). With
    `use_rope_scaling`, waves that fit less than low times into the original length become longer by the factor, those
    that fit high times or more stay, and those between are blended: Llama 3.1's apply_scaling (meta-llama/llama-models,
    models/llama3/model.py), Hugging Face's rope_type llama3.
    """
    size = model.rotary_size
    published = [model.rotary_base ** (-dimension / size) for dimension in range(0, size, 2)]
    return [_scaled(frequency, model) for frequency in published] if model.use_rope_scaling else published


def _scaled(frequency: float, model: ModelSection) -> float:
    low, high = model.rope_low_freq_factor, model.rope_high_freq_factor
    waves = model.original_max_position_embeddings * frequency / (2 * math.pi)
    kept = min(1.0, max(0.0, (waves - low) / (high - low)))
    return kept * frequency + (1.0 - kept) * frequency / model.rope_scaling_factor


class Rotations(RotaryEmbedding):
    """Return cos and sin in place of megatron-core's angles, so that no layer computes them again.

    Frequencies are computed on the host in double precision, for the same fp32 numbers on every device.
    """

    inv_freq: Tensor

    def __init__(self, model: ModelSection) -> None:
        super().__init__(model.head_size, model.rotary_percent, rotary_base=model.rotary_base)
        self._frequencies = frequencies(model)
        self._tables: dict[int, Tensor] = {}

    def forward(self, max_seq_len: int, **_kwargs: Any) -> Tensor:
        """Return cos and sin, fp32 [2, s, 1, 1, rotary_size]; the two halves of the last dimension are equal."""
        if max_seq_len not in self._tables:
            # Not before the first batch: deepspeed.zero.Init rounds tensors that a model makes to bf16 or fp16.
            host = torch.tensor(self._frequencies, dtype=torch.float32)
            self.inv_freq = host.to(self.inv_freq.device, non_blocking=True)
            angles = self.get_emb(max_seq_len)  # forward's cache would keep this module and its group's threads
            self._tables[max_seq_len] = torch.stack((angles.cos(), angles.sin()))
        return self._tables[max_seq_len]
