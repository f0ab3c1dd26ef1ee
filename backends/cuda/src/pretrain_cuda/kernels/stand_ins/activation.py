"""Bias and activation of the MLP: what Triton's kernel keeps, and its workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pretrain.plugins.stand_in import stand_in
from pretrain_cuda.kernels.stand_ins import tiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from pretrain.plugins.requests import ActivationRequest
    from pretrain.plugins.signatures import ActivationFn
    from pretrain.plugins.stand_in import Empty


def triton(request: ActivationRequest) -> ActivationFn:
    """Return the stand-in of `triton.activation.Activation`, which keeps its inputs alone."""
    halves = 2 if request.kind == "swiglu" else 1

    def compute(x: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Sequence[Tensor | None]]:
        x, bias = x.contiguous(), None if bias is None else bias.contiguous()
        return x.new_empty((*x.shape[:-1], x.shape[-1] // halves)), (x, bias)

    return stand_in(compute, _gradients)


def _gradients(kept: Sequence[Any], grad: Tensor, _: Empty) -> tuple[Tensor | None, Tensor | None]:
    x, bias = kept
    columns = x.shape[-1]
    grad_x = torch.empty_like(x)
    programs = tiles.parts(x.numel() // columns, tiles.ACTIVATION_ROWS)
    sums = None if bias is None else torch.empty(programs, columns, dtype=torch.float32, device=x.device)
    grad = grad.contiguous()
    return grad_x, None if sums is None else sums.sum(dim=0).to(bias.dtype)
