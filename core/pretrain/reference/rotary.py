"""Rotary position embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """A `RotaryFn`: rotate the first cos.shape[-1] dimensions of [s, b, n, d], i with i + half; pass on the others.

    The result of the fp32 cos and sin is rounded once, to the dtype of `x`.
    """
    rotated, passed = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    first, second = rotated.chunk(2, dim=-1)
    result = rotated * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat((result.to(x.dtype), passed), dim=-1)
