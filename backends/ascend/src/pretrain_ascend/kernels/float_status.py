"""The sticky float status of chips whose fp16 saturates instead of giving inf.

CANN keeps eight words for each device; the first is not zero once any kernel has overflowed, until they are cleared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pretrain_ascend.kernels import operators

if TYPE_CHECKING:
    from torch import Tensor

WORDS = 8


class FloatStatus:
    """An `Overflow`. Both calls are in the order of the stream; neither waits for the device."""

    def clear(self) -> None:
        """Clear the status."""
        operators.call("npu_clear_float_status", _words())

    def read(self) -> Tensor:
        """Return a fp32 scalar on the device, 1 after an overflow, else 0."""
        status: Tensor = operators.call("npu_get_float_status", _words())
        return (status[0] != 0).float()


def _words() -> Tensor:
    return torch.zeros(WORDS, device="npu")
