"""Scale, mask and softmax: what the kernels of Triton and apex keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pretrain.plugins.requests import Mask
from pretrain.plugins.stand_in import stand_in
from pretrain.reference.softmax import check_mask
from pretrain_cuda.kernels.apex_softmax import Softmax
from pretrain_cuda.kernels.apex_softmax_limits import GENERIC

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from pretrain.plugins.requests import SoftmaxRequest
    from pretrain.plugins.signatures import SoftmaxFn


def triton(request: SoftmaxRequest) -> SoftmaxFn:
    """Return the stand-in of `triton.softmax.Softmax`, which keeps the weights alone."""

    def compute(scores: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Sequence[Tensor]]:
        check_mask(request.mask, mask)
        weights = torch.empty_like(scores, memory_format=torch.contiguous_format)
        return weights, (weights,)

    return stand_in(compute, lambda kept, _, __: (torch.empty_like(kept[0]), None))


def apex(request: SoftmaxRequest, module: str) -> SoftmaxFn:
    """Return the wrapper of apex's extensions around one that allocates what they do (csrc/megatron)."""
    in_place = module != GENERIC and request.mask in (Mask.NONE, Mask.CAUSAL)
    return Softmax(request, module, _Extension(in_place=in_place))


class _Extension:
    """An extension: scaled_softmax_cuda and the causal one write the gradient over that of the weights."""

    def __init__(self, *, in_place: bool) -> None:
        self._in_place = in_place

    def forward(self, scores: Tensor, *_: object) -> Tensor:
        return torch.empty_like(scores)

    def backward(self, grad: Tensor, weights: Tensor, _: float) -> Tensor:
        return grad if self._in_place else torch.empty_like(weights)
