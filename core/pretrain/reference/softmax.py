"""Scale, mask and softmax."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pretrain.reference.accumulation import accumulation_dtype
from pretrain.reference.masks import masked_positions

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import SoftmaxRequest


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
