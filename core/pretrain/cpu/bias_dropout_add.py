"""residual + dropout(x + bias) with a fast dropout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pretrain.cpu.dropout import Dropping

if TYPE_CHECKING:
    from torch import Tensor


class BiasDropoutAdd:
    """A `BiasDropoutAddFn` for a dropout above 0."""

    def __init__(self, dropout: float) -> None:
        self.dropping = Dropping(dropout)

    def __call__(self, x: Tensor, bias: Tensor | None, residual: Tensor, *, training: bool = True) -> Tensor:
        """Return [s, b, h]."""
        x = x if bias is None else x + bias
        if not training:
            return residual + x
        y: Tensor = _DropoutAdd.apply(x, residual, self.dropping)  # type: ignore[no-untyped-call]
        return y


class _DropoutAdd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor, dropping: Dropping) -> Tensor:
        dropped = dropping.draw(x.shape)
        ctx.save_for_backward(dropped)
        ctx.scale = dropping.scale
        return torch.add(residual, x.masked_fill(dropped, 0), alpha=dropping.scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        (dropped,) = ctx.saved_tensors
        return grad.masked_fill(dropped, 0).mul_(ctx.scale), grad, None
