"""npu_rms_norm, and layer norm on an NPU: statistics and the weights' gradients are fp32 for inputs of any dtype.

torch's layer norm on fake CPU tensors would keep the statistics in the dtype of the input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pretrain.plugins.stand_in import stand_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def rms_norm(x: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, ...]:  # noqa: ARG001  the operator's
    """Return the normalized [..., h] in the dtype of `x`, the operator's first output."""

    def compute(x: Tensor, gamma: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        return torch.empty_like(x), (x, gamma, _statistic(x))

    return (stand_in(compute, _gradients)(x, gamma),)


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Sequence[Tensor | None]]:
    return torch.empty_like(x), (x, weight, bias, _statistic(x), _statistic(x))


def _gradients(kept: Sequence[Tensor], _grad: Tensor, empty: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Return the gradients; the kernels make those of the weights in fp32, which autograd casts."""
    given, *weights = empty
    in_fp32 = [None if x is None else torch.empty_like(x, dtype=torch.float32) for x in weights]
    cast = [x if x is None or x.dtype is kept[1].dtype else x.to(kept[1].dtype) for x in in_fp32]
    return [given, *cast]


def _statistic(x: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], 1, dtype=torch.float32)


layer_norm = stand_in(_layer_norm, _gradients)
"""A `NormFn`: torch's layer norm over the last dimension (LayerNormKernelNpuOpApi.cpp)."""
