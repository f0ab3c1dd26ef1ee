"""npu_scaled_masked_softmax.

Contract: torch_npu-npu_scaled_masked_softmax.md of op-plugin. Semantics: its test_scaled_masked_softmax.py; masked
scores become -10000, so that a fully masked row is uniform.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ascend_simulator.kernels.contract import broadcasts, require, require_dtype
from ascend_simulator.kernels.registration import kernel

if TYPE_CHECKING:
    from torch import Tensor

NAME = "npu_scaled_masked_softmax"
MASKED = -10000.0
SMALLEST, LARGEST, MULTIPLE = 32, 4096, 32


@kernel(f"npu::{NAME}")
def forward(x: Tensor, mask: Tensor, scale: float = 1, fixed_triu_mask: bool = False) -> Tensor:
    """Return softmax(x * scale) over the last dimension, in the dtype of x [b, n, queries, keys]."""
    require_dtype(NAME, "x", x)
    require_dtype(NAME, "mask", mask, (torch.bool,))
    require(not fixed_triu_mask, NAME, "fixed_triu_mask=True; it is reserved, only False")
    require(x.dim() == 4, NAME, f"x has {x.dim()} dimensions; only 4")
    for size in x.shape[-2:]:
        allowed = SMALLEST <= size <= LARGEST and size % MULTIPLE == 0
        require(allowed, NAME, f"{size} rows or columns; only multiples of {MULTIPLE} from {SMALLEST} to {LARGEST}")
    require(broadcasts(mask.shape, x.shape), NAME, f"a mask of {tuple(mask.shape)} for scores of {tuple(x.shape)}")
    return (x.float() * scale).masked_fill(mask, MASKED).softmax(-1).to(x.dtype)


@kernel(f"npu::{NAME}_backward")
def backward(y_grad: Tensor, y: Tensor, mask: Tensor, scale: float, fixed_triu_mask: bool) -> Tensor:
    """Return the scores' gradient; masked ones have none."""
    weights, grad = y.float(), y_grad.float()
    inner = weights * (grad - (grad * weights).sum(-1, keepdim=True))
    return (inner * scale).masked_fill(mask, 0).to(y_grad.dtype)
