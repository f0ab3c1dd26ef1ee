"""Matmul of queries and keys for chips that round a matmul before they scale it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def query_first(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Return (scale * a) @ b for batches of matrices: a `ScaledMatmul` in which only the scaled result may overflow.

    torch's baddbmm is not a single kernel here: op-plugin's acl_op::baddbmm, which the 910A family gets, is BatchMatMul
    into the dtype, mul by alpha, zeros_like and add. A raw score above 65504 is lost in fp16 before it is divided.
    Rounding the scaled queries makes up to 1.6 times the error of scaling in the matmul (measured on the CPU).
    """
    return torch.bmm(a * scale, b)
