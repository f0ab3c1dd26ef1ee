"""Dropout, whose mask torch_npu keeps as one bit an element, in multiples of 128."""

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
