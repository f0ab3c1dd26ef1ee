"""Scale, mask and softmax, and attention masks as tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pretrain.plugins.requests import Mask
from pretrain.reference.accumulation import accumulation_dtype

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import SoftmaxRequest


def check_mask(kind: Mask, mask: Tensor | None) -> None:
    """Raise ValueError if the mask tensor does not fit the kind of the request; it would have to be ignored."""
    if (mask is None) is (kind in (Mask.KEY_PADDING, Mask.ARBITRARY)):
        msg = f"a kernel built for the mask '{kind}' was called {'without a' if mask is None else 'with a'} mask tensor"
        raise ValueError(msg)


def masked_positions(kind: Mask, mask: Tensor | None, scores: Tensor) -> Tensor | None:
    """Return the masked positions, bool and broadcastable to the scores [..., queries, keys], True = masked, or None.

    Raises ValueError for a mask that does not fit the request's kind.
    """
    check_mask(kind, mask)
    if kind is Mask.CAUSAL:
        return causal(scores.shape[-2], scores.shape[-1], scores.device)
    return mask


def causal(queries: int, keys: int, device: torch.device, window: int | None = None) -> Tensor:
    """Return bool [queries, keys], True where key j is after query i, or before its `AttentionRequest.window`.

    That is j > i + keys - queries, or j <= i + keys - queries - window.
    """
    whole = torch.ones(queries, keys, dtype=torch.bool, device=device)
    after = whole.triu(keys - queries + 1)
    return after if window is None else after.logical_or_(whole.tril_(keys - queries - window))


class Softmax:
    """A `SoftmaxFn`."""

    def __init__(self, request: SoftmaxRequest) -> None:
        self.mask, self.scale, self.in_fp32 = request.mask, request.scale, request.in_fp32

    def __call__(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the weights [b, n, queries, keys] in the dtype of the scores."""
        masked = masked_positions(self.mask, mask, scores)
        return masked_softmax(scores, masked, self.scale, in_fp32=self.in_fp32)


def masked_softmax(scores: Tensor, masked: Tensor | None, scale: float, *, in_fp32: bool) -> Tensor:
    """Return softmax(scale * scores) over the last dimension; masked entries and fully masked rows are zero.

    Masked scores become the least finite number rather than minus infinity: a fully masked row is then uniform instead
    of nan before it is set to zero, forward and backward.
    """
    x = scores.to(accumulation_dtype(scores.dtype)) if in_fp32 else scores
    x = x * scale
    if masked is None:
        return torch.softmax(x, dim=-1).to(scores.dtype)
    x = x.masked_fill(masked, torch.finfo(x.dtype).min)
    return torch.softmax(x, dim=-1).masked_fill(masked, 0).to(scores.dtype)
