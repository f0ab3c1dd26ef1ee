"""Attention masks as tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pretrain.plugins.requests import Mask

if TYPE_CHECKING:
    from torch import Tensor


def check_mask(kind: Mask, mask: Tensor | None) -> None:
    """Raise ValueError if the mask tensor does not fit the kind of the request; it would have to be ignored."""
    if (mask is None) is (kind in (Mask.KEY_PADDING, Mask.ARBITRARY)):
        msg = f"a kernel built for the mask '{kind}' was called {'without a' if mask is None else 'with a'} mask tensor"
        raise ValueError(msg)


def masked_positions(kind: Mask, mask: Tensor | None, scores: Tensor) -> Tensor | None:
    """Return the masked positions, bool and broadcastable to the scores, True = masked; None: nothing is masked.

    Args:
        kind: kind of mask in the kernel's request.
        mask: the mask tensor of this call.
        scores: [..., queries, keys].

    Raises:
        ValueError: see `check_mask`.
    """
    check_mask(kind, mask)
    if kind is Mask.CAUSAL:
        return causal(scores.shape[-2], scores.shape[-1], scores.device)
    return mask


def causal(queries: int, keys: int, device: torch.device) -> Tensor:
    """Return bool [queries, keys], True where key j is after query i: j > i + keys - queries."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).triu_(keys - queries + 1)
