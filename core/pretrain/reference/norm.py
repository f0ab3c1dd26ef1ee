"""Layer norm and RMS norm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pretrain.reference.precision import accumulation_dtype

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import NormRequest


class LayerNorm:
    """A `NormFn`: (x - mean) / sqrt(variance + epsilon) * weight + bias, with the biased variance."""

    def __init__(self, request: NormRequest) -> None:
        self.epsilon = request.epsilon

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return [..., h] in the dtype of `x`."""
        y = x.to(accumulation_dtype(x.dtype))
        y = y - y.mean(dim=-1, keepdim=True)
        y = y * torch.rsqrt(y.square().mean(dim=-1, keepdim=True) + self.epsilon) * weight
        return (y if bias is None else y + bias).to(x.dtype)


class RmsNorm:
    """A `NormFn`: x / sqrt(mean(x^2) + epsilon) * weight."""

    def __init__(self, request: NormRequest) -> None:
        self.epsilon = request.epsilon

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return [..., h] in the dtype of `x`."""
        refuse_bias(bias)
        y = x.to(accumulation_dtype(x.dtype))
        return (y * torch.rsqrt(y.square().mean(dim=-1, keepdim=True) + self.epsilon) * weight).to(x.dtype)


def refuse_bias(bias: Tensor | None) -> None:
    """Raise ValueError if RMS norm is called with a bias; it has none."""
    if bias is not None:
        msg = "RMSNorm has no bias, but was called with one"
        raise ValueError(msg)


KINDS = {"LayerNorm": LayerNorm, "RMSNorm": RmsNorm}
"""`NormRequest.kind` -> its kernel."""
