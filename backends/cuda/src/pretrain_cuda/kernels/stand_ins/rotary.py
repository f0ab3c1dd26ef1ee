"""Rotary position embedding: what Triton's kernel keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pretrain.plugins.stand_in import stand_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from pretrain.plugins.signatures import RotaryFn


def triton() -> RotaryFn:
    """Return the stand-in of `triton.rotary.rotate`, which keeps the tables alone."""
    return stand_in(_compute)


def _compute(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), (cos.contiguous(), sin.contiguous())
