"""The rotation by npu_rotary_mul, which keeps its input and both factors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pretrain.plugins.stand_in import stand_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
    rotated = x[..., : cos.shape[-1]].contiguous()
    kept = (rotated, cos.to(x.dtype).contiguous(), sin.to(x.dtype).contiguous())
    turned = torch.empty_like(rotated)
    return turned if turned.shape == x.shape else x.new_empty(x.shape), kept


def _gradients(kept: Sequence[Tensor], _grad: Tensor, empty: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Return the gradients; the operator makes those of the factors even where none is asked for.

    Where a part of each head is rotated, autograd adds two gradients of whole heads in place. On fake tensors it would
    make a third one. The part's own gradient is there with both: what is kept, which has its size, stands for it.
    """
    gradients = list(empty)
    rotated, *factors = kept
    made = [torch.empty_like(factor) for factor in factors]
    if gradients[0] is not None and gradients[0].shape != rotated.shape:
        made.append(torch.empty_like(rotated))
        made.clear()
        made.append(torch.empty_like(gradients[0]))
    del made
    return gradients


rotate = stand_in(_rotate, _gradients)
"""A `RotaryFn`."""
