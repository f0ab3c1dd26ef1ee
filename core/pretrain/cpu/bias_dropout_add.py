"""residual + dropout(x + bias) with a fast dropout mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pretrain.cpu.dropout import DropoutMask

if TYPE_CHECKING:
    from torch import Tensor


class BiasDropoutAdd:
    """A `BiasDropoutAddFn` for a dropout above 0."""

    def __init__(self, dropout: float) -> None:
        self.dropout_mask = DropoutMask(dropout)

    def __call__(self, x: Tensor, bias: Tensor | None, residual: Tensor, *, training: bool = True) -> Tensor:
        """Return [s, b, h]."""
        x = x if bias is None else x + bias
        if not training:
            return residual + x
        y: Tensor = _DropoutAdd.apply(x, residual, self.dropout_mask)  # type: ignore[no-untyped-call]
        return y


class _DropoutAdd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor, dropout_mask: DropoutMask) -> Tensor:
        dropped = dropout_mask.draw(x.shape)
        ctx.save_for_backward(dropped)
        ctx.scale = dropout_mask.scale
        return torch.add(residual, x.masked_fill(dropped, 0), alpha=dropout_mask.scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        (dropped,) = ctx.saved_tensors
        return grad.masked_fill(dropped, 0).mul_(ctx.scale), grad, None
