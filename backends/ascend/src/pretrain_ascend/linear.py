"""The linear layer is the reference's; this backend offers no other, and says why there is none in fp8.

The reference issues the all-reduce of the input's gradient before the matmul of the weight's gradient, and HCCL runs it
on a stream of its own. docs/ascend.md says why the fused kernels of matmul and communication are not used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.plugins.offer import Absent, Decline
from pretrain_ascend.devices import Family

if TYPE_CHECKING:
    from pretrain.plugins.requests import LinearRequest

NAME = "quant_matmul"
"""CANN's matmul of quantized operands, as torch_npu names it: `npu_quant_matmul`."""


def answers(request: LinearRequest) -> Decline | None:
    """Return nothing, or why operands are not multiplied in fp8."""
    if not request.quantization:
        return None
    reason = f"quantization {request.quantization}; fp8 needs chip family {Family.A5}, not tried here"
    return Decline(name=NAME, reason=Absent(reason))
