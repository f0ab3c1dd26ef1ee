"""The sticky overflow flag of chips that saturate, as eight words, of which the first is the flag."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ascend_simulator.kernels.contract import require
from ascend_simulator.kernels.registration import SIMULATOR, kernel

if TYPE_CHECKING:
    from torch import Tensor

WORDS = 8


@kernel("npu::npu_alloc_float_status")
def alloc(_: Tensor) -> Tensor:
    """Return a buffer for the status."""
    return torch.zeros(WORDS)


@kernel("npu::npu_get_float_status")
def get(status: Tensor, mode: int = 0) -> Tensor:
    """Return the status since it was last cleared; the given tensor gets it too."""
    require(status.numel() == WORDS, "npu_get_float_status", f"{status.numel()} words; only {WORDS}")
    status.zero_()
    status[0] = float(SIMULATOR.overflowed())
    return status.clone()


@kernel("npu::npu_clear_float_status")
def clear(status: Tensor, mode: int = 0) -> Tensor:
    """Clear the status."""
    require(status.numel() == WORDS, "npu_clear_float_status", f"{status.numel()} words; only {WORDS}")
    SIMULATOR.clear_overflow()
    return torch.zeros_like(status)
