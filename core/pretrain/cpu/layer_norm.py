"""Layer norm of fp16 and bf16, whose weight gradients are summed in fp32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import NormRequest

ROWS = 256
"""Rows of one block of the sums: 1 MiB in fp32 for a hidden size of 1024, which stays in the cache."""


class HalfLayerNorm:
    """A `NormFn` for LayerNorm of fp16 and bf16.

    torch's backward pass for the CPU sums the gradients of weight and bias in the dtype of the input: with 8192 tokens
    in bf16 they are 10 % of the largest entry off. Its forward pass and the input's gradient are right.
    """

    def __init__(self, request: NormRequest) -> None:
        self.epsilon = request.epsilon

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return [..., h] in the dtype of `x`."""
        y: Tensor = _HalfLayerNorm.apply(x, weight, bias, self.epsilon)  # type: ignore[no-untyped-call]
        return y


class _HalfLayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
        # With fp32 weights the statistics are fp32 too.
        wide = weight.float(), None if bias is None else bias.float()
        y, mean, rstd = torch.native_layer_norm(x, x.shape[-1:], *wide, epsilon)
        ctx.save_for_backward(x, weight, bias, mean.float(), rstd.float())  # on fake tensors they are not fp32 yet
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, rstd = ctx.saved_tensors
        grad = grads[0].contiguous()
        wide = weight.float(), None if bias is None else bias.float()
        grad_x, _, _ = torch.ops.aten.native_layer_norm_backward(
            grad, x, x.shape[-1:], mean, rstd, *wide, [True, False, False]
        )
        grad_weight, grad_bias = _sums(grad, x, mean, rstd)
        return grad_x, grad_weight.to(weight.dtype), None if bias is None else grad_bias.to(bias.dtype), None


def _sums(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of weight and bias, fp32 [h]."""
    size = x.shape[-1]
    of_weight, of_bias = torch.zeros(2, size, dtype=torch.float32, device=x.device).unbind()
    rows = (
        torch.split(each.reshape(-1, width), ROWS) for each, width in ((grad, size), (x, size), (mean, 1), (rstd, 1))
    )
    for grads, inputs, means, scales in zip(*rows, strict=True):
        wide = grads.float()
        of_bias.add_(wide.sum(dim=0))
        of_weight.add_(wide.mul_(inputs.float().sub_(means).mul_(scales)).sum(dim=0))
    return of_weight, of_bias
