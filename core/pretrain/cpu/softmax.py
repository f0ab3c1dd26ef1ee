"""Scale, mask and softmax, in place where autograd allows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pretrain.reference.accumulation import accumulation_dtype
from pretrain.reference.softmax import masked_positions

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import SoftmaxRequest


class InPlaceSoftmax:
    """A `SoftmaxFn` that saves only the weights."""

    def __init__(self, request: SoftmaxRequest) -> None:
        self.mask, self.scale = request.mask, request.scale
        # torch's CPU softmax exponentiates fp16 and bf16 scores in fp32; scaled scores would be rounded before that.
        self.dtype = accumulation_dtype(request.dtype) if request.in_fp32 and request.scale != 1 else request.dtype

    def __call__(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the weights [b, n, queries, keys] in the dtype of the scores."""
        masked = masked_positions(self.mask, mask, scores)
        weights: Tensor = _InPlaceSoftmax.apply(scores, masked, self.scale, self.dtype)  # type: ignore[no-untyped-call]
        return weights


class _InPlaceSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, masked: Tensor | None, scale: float, dtype: torch.dtype) -> Tensor:
        y = scores.to(dtype, copy=True, memory_format=torch.contiguous_format)
        if scale != 1:
            y.mul_(scale)
        if masked is not None:
            y.masked_fill_(masked, torch.finfo(dtype).min)
        y = torch.softmax(y, dim=-1, out=y)
        if masked is not None:
            y.masked_fill_(masked, 0)  # matters only for fully masked rows, which are uniform
        weights = y.to(scores.dtype)
        ctx.save_for_backward(weights)
        ctx.scale = scale
        return weights

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        (weights,) = ctx.saved_tensors
        grad_scores: Tensor = torch._softmax_backward_data(grad, weights, -1, weights.dtype)  # noqa: SLF001
        return grad_scores.mul_(ctx.scale), None, None, None
