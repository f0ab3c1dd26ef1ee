"""Bias and activation of the MLP, residual + dropout(x + bias), and rotary position embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F  # noqa: N812  torch's own alias

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import BiasDropoutAddRequest


def gelu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    """An `ActivationFn`: x * (1 + erf(x / sqrt(2))) / 2 of x + bias."""
    return F.gelu(x if bias is None else x + bias)


def gelu_tanh(x: Tensor, bias: Tensor | None = None) -> Tensor:
    """An `ActivationFn`: GELU's approximation by tanh (Hendrycks and Gimpel 2016, arXiv 1606.08415) of x + bias."""
    return F.gelu(x if bias is None else x + bias, approximate="tanh")


def swiglu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    """An `ActivationFn`: silu(first half) * second half of x + bias (Shazeer 2020, arXiv 2002.05202)."""
    gate, linear = (x if bias is None else x + bias).chunk(2, dim=-1)
    return F.silu(gate) * linear


ACTIVATIONS = {"gelu": gelu, "gelu_tanh": gelu_tanh, "swiglu": swiglu}
"""`ActivationRequest.kind` -> its kernel."""


class BiasDropoutAdd:
    """A `BiasDropoutAddFn`."""

    def __init__(self, request: BiasDropoutAddRequest) -> None:
        self.dropout = request.dropout

    def __call__(self, x: Tensor, bias: Tensor | None, residual: Tensor, *, training: bool = True) -> Tensor:
        """Return [s, b, h]."""
        x = x if bias is None else x + bias
        return residual + F.dropout(x, self.dropout, training=training)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """A `RotaryFn`: rotate the first cos.shape[-1] dimensions of [s, b, n, d], i with i + half; pass on the others.

    The result of the fp32 cos and sin is rounded once, to the dtype of `x`.
    """
    rotated, passed = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    first, second = rotated.chunk(2, dim=-1)
    result = rotated * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat((result.to(x.dtype), passed), dim=-1)
