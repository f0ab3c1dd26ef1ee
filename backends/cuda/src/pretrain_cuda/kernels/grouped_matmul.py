"""torch's grouped matmul as the linear of experts.

A thread block computes a tile of the output alone (GroupMM.cu: no split of the sum), so that two calls give the same
bits. Weight gradients are rounded to bf16 and returned: with an fp32 output torch leaves this kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812  torch's own alias

if TYPE_CHECKING:
    from torch import Tensor


def grouped_linear(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """A `GroupedLinearFn`: [rows, out] for x [rows, in] and weight [experts, out, in]."""
    y: Tensor = _GroupedLinear.apply(x, weight, counts)  # type: ignore[no-untyped-call]
    return y


class _GroupedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        ends = counts.cumsum(0, dtype=torch.int32)
        ctx.save_for_backward(x, weight, ends)
        if not x.shape[0]:
            return x.new_empty(0, weight.shape[1])
        return F.grouped_mm(x, weight.transpose(1, 2), offs=ends)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, ends = ctx.saved_tensors
        if not x.shape[0]:
            return torch.empty_like(x), torch.zeros_like(weight), None
        grad = grads[0].contiguous()
        grad_x = F.grouped_mm(grad, weight, offs=ends) if ctx.needs_input_grad[0] else None
        grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = F.grouped_mm(grad.t(), x, offs=ends)
            # torch's tests have no gradient of an expert without rows, which is a sum of nothing.
            is_empty = ends.diff(prepend=ends.new_zeros(1)) == 0
            grad_weight.masked_fill_(is_empty.view(-1, 1, 1), 0)
        return grad_x, grad_weight, None
