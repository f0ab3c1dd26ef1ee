"""Rotary position embedding: cos and sin, computed once per sequence length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding

if TYPE_CHECKING:
    from torch import Tensor


class Rotations(RotaryEmbedding):
    """Return cos and sin in place of megatron-core's angles, so that no layer computes them again."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tables: dict[int, Tensor] = {}

    def forward(self, max_seq_len: int, **_kwargs: Any) -> Tensor:
        """Return cos and sin, fp32 [2, s, 1, 1, rotary_size]; the two halves of the last dimension are equal."""
        if max_seq_len not in self._tables:
            angles = super().forward(max_seq_len).float()
            self._tables[max_seq_len] = torch.stack((angles.cos(), angles.sin()))
        return self._tables[max_seq_len]
