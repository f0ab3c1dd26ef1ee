"""The backward of matmul, which torch_npu has as one operator and the CPU has not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ascend_simulator.kernels.registration import SIMULATOR, kernel

if TYPE_CHECKING:
    from torch import Tensor


@kernel("aten::matmul_backward")
def matmul_backward(grad: Tensor, left: Tensor, right: Tensor, mask: list[bool]) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients that are asked for; vectors count as matrices, and broadcast dimensions are summed."""
    a = left[None] if left.dim() == 1 else left
    b = right[:, None] if right.dim() == 1 else right
    if right.dim() == 1:
        grad = grad.unsqueeze(-1)
    if left.dim() == 1:
        grad = grad.unsqueeze(-2)
    grad, a, b = (SIMULATOR.factor(x) for x in (grad, a, b))
    da = (grad @ b.mT).sum_to_size(a.shape).view(left.shape) if mask[0] else None
    db = _right(a, grad, b).view(right.shape) if mask[1] else None
    return da, db


def _right(a: Tensor, grad: Tensor, b: Tensor) -> Tensor:
    if b.dim() == 2:  # one matmul: a batch of them, summed, takes a hundred times as long
        return a.flatten(0, -2).mT @ grad.flatten(0, -2)
    return (a.mT @ grad).sum_to_size(b.shape)


@kernel("aten::baddbmm")
def baddbmm(added: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Return beta * added + alpha * left @ right.

    On the first generation torch_npu takes the older, compiled operators: op-plugin's acl_op::baddbmm rounds each step.
    """
    if not SIMULATOR.first_generation():
        return torch.baddbmm(added, left, right, beta=beta, alpha=alpha)
    product = (SIMULATOR.factor(left).float() @ SIMULATOR.factor(right).float()).to(left.dtype)
    SIMULATOR.saturate_(product)
    scaled = product * alpha
    SIMULATOR.saturate_(scaled)
    return scaled + (added * beta if beta else added.new_zeros(()))
