"""npu_rotary_mul for the part of a head that is rotated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pretrain_ascend.kernels import operators

if TYPE_CHECKING:
    from torch import Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """A `RotaryFn`: [s, b, n, d] with cos and sin [s, 1, 1, rotary_size], which the operator wants in the dtype of `x`.

    Its default is the half-split rotation. In fp16 and bf16 cos and sin are thus rounded before the
    multiplication, not after it.
    """
    size = cos.shape[-1]
    turned: Tensor = operators.call(
        "npu_rotary_mul", x[..., :size].contiguous(), cos.to(x.dtype).contiguous(), sin.to(x.dtype).contiguous()
    )
    return turned if size == x.shape[-1] else torch.cat((turned, x[..., size:]), dim=-1)
