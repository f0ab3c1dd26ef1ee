"""npu_rms_norm, and torch's layer norm. Statistics are in fp32 for inputs of any dtype.

The CPU's layer norm has them in the dtype of the input, torch_npu's has not (op-plugin's LayerNormKernelNpuOpApi.cpp).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ascend_simulator.kernels.contract import require, require_one_dtype
from ascend_simulator.kernels.registration import kernel

if TYPE_CHECKING:
    from torch import Tensor

MIXED = {(torch.float16, torch.float32), (torch.bfloat16, torch.float32)}
"""Pairs of input and weight that the second generation takes besides equal ones (torch_npu-npu_rms_norm.md)."""


@kernel("npu::npu_rms_norm")
def rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Return x / rms(x) * gamma in the dtype of x, and 1 / rms(x) in fp32 with ones for gamma's dimensions."""
    check("npu_rms_norm", x, gamma)
    rstd = (x.float().square().mean(_trailing(gamma), keepdim=True) + epsilon).rsqrt()
    return (x.float() * rstd * gamma.float()).to(x.dtype), rstd


@kernel("npu::npu_rms_norm_backward")
def rms_norm_backward(dy: Tensor, x: Tensor, gamma: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of x, in its dtype, and of gamma, in fp32."""
    normal, grad = x.float() * rstd, dy.float()
    scaled = grad * gamma.float()
    dx = rstd * (scaled - normal * (scaled * normal).mean(_trailing(gamma), keepdim=True))
    return dx.to(x.dtype), (grad * normal).sum_to_size(gamma.shape)


@kernel("aten::native_layer_norm")
def layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normalized input in its dtype, mean and 1 / deviation."""
    y, mean, rstd = torch.native_layer_norm(x.float(), shape, _float(weight), _float(bias), eps)
    return y.to(x.dtype), mean, rstd


@kernel("aten::native_layer_norm_backward")
def layer_norm_backward(
    dy: Tensor, x: Tensor, shape: list[int], mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None,
    mask: list[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Return the gradients of the input, in its dtype, and of weight and bias, in fp32."""
    given = dy.float(), x.float(), shape, mean, rstd, _float(weight), _float(bias), mask
    dx, dweight, dbias = torch.ops.aten.native_layer_norm_backward(*given)
    return dx.to(x.dtype) if mask[0] else None, dweight if mask[1] else None, dbias if mask[2] else None


def _float(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.float()


def check(name: str, x: Tensor, gamma: Tensor) -> None:
    """Raise ContractError unless the weight fits the input."""
    fits = x.shape[x.dim() - gamma.dim() :] == gamma.shape
    require(fits, name, f"a weight of {tuple(gamma.shape)} for an input of {tuple(x.shape)}; only its last dimensions")
    if torch.ops.ascend_simulator.first_generation() or (x.dtype, gamma.dtype) not in MIXED:
        require_one_dtype(name, x=x, gamma=gamma)


def _trailing(gamma: Tensor) -> tuple[int, ...]:
    return tuple(range(-gamma.dim(), 0))
