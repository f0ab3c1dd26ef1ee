"""FP8 operands of matmuls, in plain torch: this is what a request's `quantization` means, bit for bit.

A group of neighbouring entries along the dimension that the matmul sums over has one scale, a power of two: that which
brings the group's largest entry just under the largest number of fp8. A multiplication by it rounds nothing, so that
operands are the same bits on every device, and fp8 times its scale is exactly a bf16 number. The groups are

    tensorwise: the whole matrix (a rank's part of it, an expert's rows);
    rowwise:    a row, over all of the summed dimension, as torchao's "rowwise" (float8/config.py);
    block:      1 x 128 of a row, DeepSeek-V3 (arXiv 2412.19437, section 3.3.2);
    mxfp8:      1 x 32 of a row, OCP Microscaling Formats (MX) v1.0, whose scales are E8M0.

Weights have 1 x 128 too, where DeepSeek-V3 has 128 x 128: one rule for all operands. The last group of a row may be
shorter. Elements are E4M3; gradients under "tensorwise" E5M2, as Megatron's and Transformer Engine's "hybrid" format.
Elements are rounded to nearest, ties to even. OCP rounds scales down and lets large elements saturate, with which
trainings can diverge (arXiv 2506.08027); here they are rounded up, as proposed there, so that nothing saturates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F  # noqa: N812  torch's own alias

from pretrain.plugins.constant_weights import made_once

if TYPE_CHECKING:
    from torch import Tensor

GROUPS = {"block": 128, "mxfp8": 32}
"""Entries of a group, of the kinds whose groups are parts of a row."""

_MANTISSA = 23
"""Bits of fp32's mantissa, below its exponent."""

_INF = 0x7F800000
"""Bits of fp32's infinity; those of a NaN are more."""


def element_dtype(kind: str, *, is_gradient: bool = False) -> torch.dtype:
    """Return the dtype of the elements of an operand."""
    return torch.float8_e5m2 if is_gradient and kind == "tensorwise" else torch.float8_e4m3fn


def scales(amax: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the scale of each group, fp32, for its largest magnitude: the least 2^e with amax / 2^e at most fp8's max.

    e is at least -126, which only groups reach whose entries all are below 2^-117. An infinite or NaN amax gives NaN,
    and so a group of NaN, as E8M0's NaN does (OCP MX v1.0). By integer arithmetic on the bits of fp32, whose result is
    the same on every device.
    """
    mantissa, exponent = math.frexp(torch.finfo(dtype).max)  # 0.875 and 9 for E4M3, 0.875 and 16 for E5M2
    most = round((2 * mantissa - 1) * 2**_MANTISSA)  # bits of the largest mantissa that still fits
    bits = amax.float().view(torch.int32)
    carried = (bits + (2**_MANTISSA - 1 - most)) >> _MANTISSA  # one more where the mantissa is over that
    scale = ((carried - (exponent - 1)).clamp(min=1) << _MANTISSA).view(torch.float32)
    found: Tensor = scale.masked_fill(bits >= _INF, math.nan)
    return found


def quantize(x: Tensor, kind: str, dim: int, *, is_gradient: bool = False) -> tuple[Tensor, Tensor]:
    """Return the elements of a matrix in fp8, and its scales in fp32, which multiply them.

    x is [rows, columns] in bf16, fp32 or fp64, not empty; the matmul sums over `dim`. Elements have x's shape; scales
    have one entry in place of a group: [1, 1], [rows, 1] for dim 1, or [rows, groups].
    """
    dtype, magnitude = element_dtype(kind, is_gradient=is_gradient), x.abs()
    if size := GROUPS.get(kind):
        missing = -x.shape[dim] % size
        padded = F.pad(magnitude, (0, 0, 0, missing) if dim == 0 else (0, missing)) if missing else magnitude
        rows, columns = padded.shape
        groups = padded.reshape(-1, size, columns) if dim == 0 else padded.reshape(rows, -1, size)
        scale = scales(groups.amax(dim + 1), dtype)
    else:
        scale = scales(magnitude.amax(dim if kind == "rowwise" else (0, 1), keepdim=True), dtype)
    # In x's dtype, whose exponents are fp32's or more: the product is exact there, or too small for fp8 by far.
    return (x * of_entries(scale.reciprocal().to(x.dtype), x, kind, dim)).to(dtype), scale


def of_entries(scale: Tensor, x: Tensor, kind: str, dim: int) -> Tensor:
    """Return scales in a shape that broadcasts to x: those of parts of a row once for each entry."""
    size = GROUPS.get(kind)
    return scale.repeat_interleave(size, dim).narrow(dim, 0, x.shape[dim]) if size else scale


def quantized(x: Tensor, kind: str, dim: int, *, is_gradient: bool = False) -> Tensor:
    """Return a matrix [rows, columns] rounded to its fp8 operand: elements times scales, in x's dtype, exact there."""
    if not x.numel():
        return x
    elements, scale = quantize(x, kind, dim, is_gradient=is_gradient)
    return elements.to(x.dtype) * of_entries(scale, x, kind, dim).to(x.dtype)


@dataclass(frozen=True, slots=True)
class Operands:
    """Pairs of operands of a linear's three matmuls as `LinearRequest.quantization` says; "": as they are.

    Each is quantized along the dimension over which its matmul sums. Shapes: x [..., in], grad [..., out], weight
    [out, in].
    """

    kind: str
    quantized_wgrad: bool = True

    def forward(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return x and weight of x weight^T, which sums over in."""
        return self.rounded(x, 1), self.rounded_weight(weight, 1)

    def of_input(self, grad: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return grad and weight of grad weight, the gradient of x, which sums over out."""
        return self.rounded(grad, 1, is_gradient=True), self.rounded_weight(weight, 0)

    def of_weight(self, grad: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return grad and x, [rows, out] and [rows, in], of grad^T x, the gradient of weight, which sums over rows."""
        if not self.quantized_wgrad:
            return grad, x
        return self.rounded(grad, 0, is_gradient=True), self.rounded(x, 0)

    def rounded(self, x: Tensor, dim: int, *, is_gradient: bool = False) -> Tensor:
        """Return x, whose leading dimensions count as one of rows, rounded along dimension 0 or 1 of that matrix."""
        if not self.kind:
            return x
        return quantized(x.reshape(-1, x.shape[-1]), self.kind, dim, is_gradient=is_gradient).view(x.shape)

    def rounded_weight(self, weight: Tensor, dim: int, expert: int | None = None) -> Tensor:
        """Return a weight [out, in], or an expert's of [experts, out, in], rounded along out (0) or in (1).

        It is rounded once while the weight does not change.
        """
        matrix = weight if expert is None else weight[expert]
        if not self.kind:
            return matrix
        return made_once(weight, ("reference", self.kind, dim, expert), lambda: self.rounded(matrix, dim))
