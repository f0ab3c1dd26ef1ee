"""The mask of a request as a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pretrain.plugins.requests import Mask

if TYPE_CHECKING:
    from torch import Tensor


def check_given(kind: Mask, mask: Tensor | None) -> None:
    """Raise ValueError where the mask given is not of the kind asked for; it would have to be ignored."""
    if (mask is None) is (kind in (Mask.KEY_PADDING, Mask.ARBITRARY)):
        msg = f"a kernel built for the mask '{kind}' was called {'without a' if mask is None else 'with a'} mask tensor"
        raise ValueError(msg)


def masked_positions(kind: Mask, mask: Tensor | None, scores: Tensor) -> Tensor | None:
    """Return what a query must not see, bool and broadcastable to the scores, True = masked; None: sees everything.

    Args:
        kind: which mask the kernel was asked for.
        mask: the mask that it was given.
        scores: [..., queries, keys].

    Raises:
        ValueError: see `check_given`.
    """
    check_given(kind, mask)
    if kind is Mask.CAUSAL:
        return causal(scores.shape[-2], scores.shape[-1], scores.device)
    return mask


def causal(queries: int, keys: int, device: torch.device) -> Tensor:
    """Return bool [queries, keys], True where key j is after query i: j > i + keys - queries."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).triu_(keys - queries + 1)
