"""Layer norm and RMS norm, by their formulas and by torch's own kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F  # noqa: N812  torch's own alias

from pretrain.reference.accumulation import accumulation_dtype

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


class TorchNorm:
    """A `NormFn` of torch's, a fused kernel on most devices, that accumulates the statistics in fp32.

    The device decides on the dtypes of the weights: the CPU also accepts fp32 weights for fp16 and bf16 inputs.
    """

    def __init__(self, request: NormRequest) -> None:
        self.kind, self.epsilon = request.kind, request.epsilon

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return [..., h] in the dtype of `x`."""
        if self.kind == "LayerNorm":
            return F.layer_norm(x, weight.shape, weight, bias, self.epsilon)
        refuse_bias(bias)
        return F.rms_norm(x, weight.shape, weight, self.epsilon)


def refuse_bias(bias: Tensor | None) -> None:
    """Raise ValueError if RMS norm is called with a bias; it has none."""
    if bias is not None:
        msg = "RMSNorm has no bias, but was called with one"
        raise ValueError(msg)


KINDS = {"LayerNorm": LayerNorm, "RMSNorm": RmsNorm}
"""`NormRequest.kind` -> its kernel."""
