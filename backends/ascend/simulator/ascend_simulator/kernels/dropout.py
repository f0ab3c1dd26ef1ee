"""Dropout, whose mask torch_npu keeps as one bit an element, in multiples of 128.

torch's own, which torch_npu computes in the same way: NativeDropoutKernelNpuOpApi.cpp of op-plugin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ascend_simulator.kernels import random
from ascend_simulator.kernels.registration import kernel

if TYPE_CHECKING:
    from torch import Tensor

BITS, MULTIPLE = 8, 128


@kernel("npu::_npu_dropout")
def forward(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Return the elements that are kept, scaled, and the mask."""
    mask = packed(random.kept(x.shape, 1 - p, *random.draw()))
    return apply(x, mask, p), mask


@kernel("aten::native_dropout")
def native_forward(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Return the same; a mask of bytes only where nothing is dropped, or everything."""
    if p == 0 or train is False:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    return (torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)) if p == 1 else forward(x, p)


@kernel("aten::native_dropout_backward")
def native_backward(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Return the gradient of what was kept; the scale is 1 / (1 - p), or 0 for p = 1."""
    p = 1 - 1 / scale if scale else 1.0
    return backward(grad, mask, p) if 0 < p < 1 else grad * (p == 0)


@kernel("npu::npu_dropout_backward")
def backward(grad: Tensor, mask: Tensor, p: float) -> Tensor:
    """Return the gradient of what was kept."""
    return apply(grad, mask, p)


def apply(x: Tensor, mask: Tensor, p: float) -> Tensor:
    """Return the kept elements divided by the probability that they are."""
    kept = unpacked(mask, x.numel()).view(x.shape)
    return torch.where(kept, x / (1 - p), 0).to(x.dtype) if p < 1 else torch.zeros_like(x)


def packed(kept: Tensor) -> Tensor:
    """Return uint8, one bit an element."""
    padding = -kept.numel() % MULTIPLE
    bits = torch.nn.functional.pad(kept.flatten().to(torch.uint8), (0, padding)).view(-1, BITS)
    return (bits << torch.arange(BITS, dtype=torch.uint8)).sum(-1, dtype=torch.uint8)


def unpacked(mask: Tensor, size: int) -> Tensor:
    """Return bool [size]."""
    return ((mask[:, None] >> torch.arange(BITS, dtype=torch.uint8)) & 1).flatten()[:size].bool()
