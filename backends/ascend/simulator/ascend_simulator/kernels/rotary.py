"""npu_rotary_mul. Contract: torch_npu-npu_rotary_mul.md of op-plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ascend_simulator.kernels.contract import broadcasts, require, require_dtype, require_one_dtype
from ascend_simulator.kernels.registration import kernel

if TYPE_CHECKING:
    from torch import Tensor

NAME = "npu_rotary_mul"
LARGEST_HEAD = 896


@kernel(f"npu::{NAME}")
def forward(x: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Tensor | None = None) -> Tensor:
    """Return x * r1 + rotated(x) * r2, for 3 or 4 dimensions of which the last is the head."""
    size = x.shape[-1]
    require_dtype(NAME, "x", x)
    require_one_dtype(NAME, x=x, r1=r1, r2=r2)
    require(rotate is None, NAME, "a matrix `rotate`, which is not simulated")
    require(rotary_mode in {"half", "interleave"}, NAME, f"rotary_mode '{rotary_mode}'; only half, interleave")
    require(
        x.dim() in {3, 4} and x.dim() == r1.dim() == r2.dim(), NAME, "only 3 or 4 dimensions, and as many of r1, r2"
    )
    require(size % 2 == 0 and size < LARGEST_HEAD, NAME, f"heads of {size}; only even sizes below {LARGEST_HEAD}")
    fits = r1.shape == r2.shape and r1.shape[-1] == size and broadcasts(r1.shape, x.shape)
    require(fits, NAME, f"r1 {tuple(r1.shape)} and r2 {tuple(r2.shape)} for {tuple(x.shape)}")
    return (x * r1 + turned(x, rotary_mode) * r2).to(x.dtype)


@kernel(f"npu::{NAME}_backward")
def backward(
    grad: Tensor, x: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half"
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, r1 and r2."""
    dx = grad * r1 - turned(grad * r2, rotary_mode)  # the rotation is antisymmetric
    return dx, (grad * x).sum_to_size(r1.shape), (grad * turned(x, rotary_mode)).sum_to_size(r2.shape)


def turned(x: Tensor, mode: str) -> Tensor:
    """Return every pair (a, b) as (-b, a): neighbours if interleaved, else of both halves."""
    if mode == "interleave":
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)
