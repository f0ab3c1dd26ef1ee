"""npu_grouped_matmul as the linear of experts; torch_npu gives it no gradient.

Modes of aclnnGroupedMatmulV4: group_type 0 divides the rows of x among the matrices of one weight, 2 the axis over
which is summed; group_list_type 1 says that the list counts rows; split_item 3 gives one tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from pretrain_ascend.kernels import operators

if TYPE_CHECKING:
    from torch import Tensor

ROWS, SUMS = 0, 2


def grouped_linear(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """A `GroupedLinearFn`: [rows, out] for x [rows, in] and weight [experts, out, in]."""
    y: Tensor = _GroupedLinear.apply(x, weight, counts)  # type: ignore[no-untyped-call]
    return y


class _GroupedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        ctx.save_for_backward(x, weight, counts)
        if not x.shape[0]:
            return x.new_empty(0, weight.shape[1])
        return _grouped(x, weight.transpose(1, 2), counts, ROWS)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, counts = ctx.saved_tensors
        if not x.shape[0]:
            return torch.empty_like(x), torch.zeros_like(weight), None
        grad = grads[0].contiguous()
        grad_x = _grouped(grad, weight, counts, ROWS) if ctx.needs_input_grad[0] else None
        grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = _grouped(grad.t(), x, counts, SUMS)
            # The documentation does not say what a sum over no rows gives.
            grad_weight.masked_fill_((counts == 0).view(-1, 1, 1), 0)
        return grad_x, grad_weight, None


def _grouped(x: Tensor, weight: Tensor, counts: Tensor, group_type: int) -> Tensor:
    options: dict[str, Any] = {"group_list": counts, "split_item": 3, "group_type": group_type, "group_list_type": 1}
    (y,) = operators.call("npu_grouped_matmul", [x], [weight], **options)
    result: Tensor = y
    return result
