"""apex's layer norms and RMS norm, called as megatron-core calls them (fusions/fused_layer_norm.py)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from pretrain.reference.norm import refuse_bias

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import NormRequest

MOST_ENTRIES = 2**31 - 1
"""apex's kernels count the entries of the input in 32 bits."""


class FastLayerNorm:
    """A `NormFn`: apex.contrib.layer_norm's, for listed hidden sizes."""

    def __init__(self, request: NormRequest) -> None:
        self.epsilon = request.epsilon
        self.function: Any = import_module("apex.contrib.layer_norm.layer_norm").FastLayerNormFN

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return [..., h] in the dtype of `x`."""
        _check(x)
        y: Tensor = self.function.apply(x, weight, _bias(weight, bias), self.epsilon)
        return y


class FusedNorm:
    """A `NormFn`: apex.normalization's FusedLayerNorm or FusedRMSNorm."""

    def __init__(self, request: NormRequest) -> None:
        self.epsilon, self.is_rms = request.epsilon, request.kind == "RMSNorm"
        module: Any = import_module("apex.normalization.fused_layer_norm")
        self.function = module.FusedRMSNormAffineFunction if self.is_rms else module.FusedLayerNormAffineFunction

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return [..., h] in the dtype of `x`."""
        _check(x)
        if self.is_rms:
            refuse_bias(bias)
        weights = (weight,) if self.is_rms else (weight, _bias(weight, bias))
        y: Tensor = self.function.apply(x, *weights, weight.shape, self.epsilon)
        return y


def _bias(weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.zeros_like(weight) if bias is None else bias


def _check(x: Tensor) -> None:
    if x.numel() > MOST_ENTRIES:
        msg = (
            f"apex's norms take at most {MOST_ENTRIES} entries, got {list(x.shape)}.\n"
            "Name another kernel (kernels: {norm: triton}), or make the micro batch smaller."
        )
        raise ValueError(msg)
