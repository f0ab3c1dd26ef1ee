"""npu_swiglu, npu_gelu and fast_gelu. Calculated in fp32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F  # noqa: N812  torch's own alias

from ascend_simulator.kernels.contract import require, require_dtype, require_second_generation
from ascend_simulator.kernels.registration import kernel

if TYPE_CHECKING:
    from torch import Tensor

FAST = 1.702
"""fast_gelu(x) = x * sigmoid(1.702 x)."""


@kernel("npu::npu_swiglu")
def swiglu(x: Tensor, dim: int = -1) -> Tensor:
    """Return silu(first half) * second half."""
    require_second_generation("npu_swiglu")
    require_dtype("npu_swiglu", "x", x)
    require(x.shape[dim] % 2 == 0, "npu_swiglu", f"{x.shape[dim]} features; only an even number")
    first, second = x.float().chunk(2, dim)
    return (F.silu(first) * second).to(x.dtype)


@kernel("npu::npu_swiglu_backward")
def swiglu_backward(grad: Tensor, x: Tensor, dim: int = -1) -> Tensor:
    """Return the gradient of x."""
    first, second = x.float().chunk(2, dim)
    sigmoid, g = torch.sigmoid(first), grad.float()
    slope = sigmoid * (1 + first * (1 - sigmoid))
    return torch.cat((g * second * slope, g * first * sigmoid), dim).to(x.dtype)


@kernel("npu::npu_gelu")
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """Return x * Phi(x), exact or by tanh."""
    require_dtype("npu_gelu", "x", x)
    return F.gelu(x.float(), approximate=approximate).to(x.dtype)


@kernel("npu::npu_gelu_backward")
def gelu_backward(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    """Return the gradient of x."""
    return torch.ops.aten.gelu_backward(grad.float(), x.float(), approximate=approximate).to(x.dtype)


@kernel("npu::fast_gelu", "npu::npu_fast_gelu")
def fast_gelu(x: Tensor) -> Tensor:
    """Return x * sigmoid(1.702 x)."""
    return (x.float() * torch.sigmoid(FAST * x.float())).to(x.dtype)


@kernel("npu::npu_fast_gelu_backward")
def fast_gelu_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of x."""
    sigmoid = torch.sigmoid(FAST * x.float())
    return (grad.float() * sigmoid * (1 + FAST * x.float() * (1 - sigmoid))).to(x.dtype)
