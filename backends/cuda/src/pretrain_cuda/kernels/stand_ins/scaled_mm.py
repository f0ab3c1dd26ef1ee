"""Operands in fp8: what Triton's kernel allocates, reads and writes. torch's scaled_mm runs on fake tensors itself."""

from __future__ import annotations

import torch

from pretrain.plugins.stand_in import passing
from pretrain.reference.quantization import GROUPS, element_dtype

OPERATION = "quantize"
"""No operation of a plugin: a "linear" would count as one of matmuls."""


def quantize(
    x: torch.Tensor, kind: str, dim: int, length: int, *, is_gradient: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Take the place of `triton.quantize.quantize`: a row or a matrix is read once more, for its largest entry."""
    outer = 1 if kind == "tensorwise" else x.shape[1 - dim]
    group = GROUPS.get(kind)
    largest: tuple[torch.Tensor, ...] = ()
    if group is None:
        with passing(OPERATION, is_backward=False) as tell:
            largest = (x.new_empty(outer, dtype=torch.int32),)
            tell((x,), largest)
    with passing(OPERATION, is_backward=False) as tell:
        elements = x.new_empty(x.shape[1 - dim], length, dtype=element_dtype(kind, is_gradient=is_gradient))
        scale = x.new_empty(1 if group is None else -(-x.shape[dim] // group), outer, dtype=torch.float32)
        tell((x, *largest), (elements, scale))
    return elements, scale.t()
