"""Tolerances of each dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2**-5, torch.float16: 2**-8}
"""The largest error allowed, as a part of the largest entry of the expected tensor.

fp16 and bf16: four units in the last place (2^-7 for bf16, 2^-10 for fp16). A kernel rounds its result, and, if it is
made of two matmuls, the values between them, forward and again backward. Kernel and reference have the same inputs.
fp32: 84 units (2^-23). Kernels sum a few hundred terms in different orders.
fp64: the same, for kernels that support it.

Relative to the largest entry, not to each one: a difference of large terms has their error.
"""


def assert_near(actual: Tensor, expected: Tensor, dtype: torch.dtype, what: str, *, floor: float = 0.0) -> None:
    """Fail unless every entry is finite and within the tolerance of the dtype.

    Args:
        actual: on any device.
        expected: fp64 on the CPU.
        dtype: of the kernel's inputs.
        what: name in the message.
        floor: lower limit of the largest entry, as entries may be differences of terms of this size.
    """
    actual = actual.detach().cpu().double()
    assert actual.shape == expected.shape, f"{what}: shape {list(actual.shape)}, expected {list(expected.shape)}"
    if not expected.numel():
        return
    assert bool(actual.isfinite().all()), f"{what}: {int((~actual.isfinite()).sum())} entries are not finite"
    error, largest = (actual - expected).abs().max().item(), expected.abs().max().item()
    allowed = TOLERANCE[dtype] * max(largest, floor)
    assert error <= allowed, f"{what}: error {error:.3g}, allowed {allowed:.3g} ({dtype}, largest entry {largest:.3g})"
