"""A layer norm whose gradient is 2 % too large in layer 7 of a GPT with 12 layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pretrain.plugins import hookimpl
from pretrain.plugins.offer import Offer

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import NormRequest

CALLS = 25
"""In a forward pass: two in each of twelve layers, and one after them."""
WRONG = 12
"""The first call of layer 7, counted from 0."""


class FastNorm:
    """The norm, which counts its calls."""

    def __init__(self, epsilon: float) -> None:
        self._epsilon = epsilon
        self._calls = 0

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the norm of x [..., hidden]."""
        if self._calls % CALLS == WRONG:
            x = LargeGradient.apply(x)
        self._calls += 1
        return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, self._epsilon)


class LargeGradient(torch.autograd.Function):
    """The identity, forward; backward, the mistake."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return x."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Return a gradient that is too large."""
        return gradient * 1.02


@hookimpl
def pretrain_norm(request: NormRequest) -> Offer | None:
    """Offer the norm for layer norms on the CPU."""
    if request.device_type != "cpu" or request.kind != "LayerNorm":
        return None
    return Offer(name="fast_norm", build=lambda built: FastNorm(request.epsilon))
