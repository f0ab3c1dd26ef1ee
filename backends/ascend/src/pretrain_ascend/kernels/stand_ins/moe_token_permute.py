"""What npu_moe_token_permute and npu_moe_token_unpermute return, and what torch_npu 2.13's autograd keeps of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pretrain.plugins.stand_in import stand_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def token_permute(tokens: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows [n k, h] and int32 [n k]."""
    places = torch.empty(indices.numel(), dtype=torch.int32, device=tokens.device)
    return _permuted(tokens, indices, places), places


def _permute(tokens: Tensor, indices: Tensor, places: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
    return tokens.new_empty(indices.numel(), tokens.shape[1]), (places,)


_permuted = stand_in(_permute)


def _unpermute(rows: Tensor, indices: Tensor, *, probs: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
    return rows.new_empty(probs.shape[0], rows.shape[1]), (rows, indices, probs)


token_unpermute = stand_in(_unpermute)
"""Returns [n, h]."""
