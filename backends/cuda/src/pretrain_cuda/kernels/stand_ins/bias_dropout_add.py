"""residual + dropout(x + bias): what Triton's kernel keeps, and its workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pretrain.plugins.stand_in import stand_in
from pretrain_cuda.kernels.stand_ins import tiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from pretrain.plugins.requests import BiasDropoutAddRequest
    from pretrain.plugins.signatures import BiasDropoutAddFn
    from pretrain.plugins.stand_in import Empty


def triton(request: BiasDropoutAddRequest) -> BiasDropoutAddFn:
    """Return the stand-in of `triton.bias_dropout_add.BiasDropoutAdd`, which keeps the seed of its dropout alone."""

    def compute(
        x: Tensor, bias: Tensor | None, residual: Tensor, *, training: bool = True
    ) -> tuple[Tensor, Sequence[Tensor]]:
        del bias
        x, residual = x.contiguous(), residual.contiguous()
        drops = training and request.dropout > 0
        seed = [torch.empty(1, dtype=torch.int64, device=x.device)] if drops else []
        return torch.empty_like(x), seed

    return stand_in(compute, _gradients)


def _gradients(kept: Sequence[Tensor], grad: Tensor, empty: Empty) -> tuple[Tensor, Tensor | None, Tensor]:
    if not kept:
        return grad, empty[1], grad  # the gradient itself, for both
    grad = grad.contiguous()
    grad_x, columns = torch.empty_like(grad), grad.shape[-1]
    if not empty.needed(1):
        return grad_x, None, grad
    programs = tiles.parts(grad.numel() // columns, tiles.DROPOUT_ROWS)
    sums = torch.empty(programs, columns, dtype=torch.float32, device=grad.device)
    return grad_x, sums.sum(dim=0).to(grad.dtype), grad
