"""npu_gelu and npu_swiglu: both keep their input."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pretrain.plugins.stand_in import stand_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:  # noqa: ARG001  the operator's
    """Return [..., features] for [..., features]."""
    return _gelu(x)


def swiglu(x: Tensor) -> Tensor:
    """Return [..., features] for [..., 2 * features]."""
    return _swiglu(x)


def _compute_gelu(x: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
    return torch.empty_like(x), (x,)


def _compute_swiglu(x: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
    return x.new_empty(*x.shape[:-1], x.shape[-1] // 2), (x,)


_gelu, _swiglu = stand_in(_compute_gelu), stand_in(_compute_swiglu)
