"""A linear's matmuls in fp8, by torch's `scaled_mm`: kernels of cuBLAS, and of CUTLASS for rows outside of Hopper.

Operands have the bits of `pretrain.reference.quantization`. Both are given as [outer, summed] in memory, the one layout
that all GPUs take; Triton's kernel writes them so, also those that are summed over their rows. Nothing of this was run
on a GPU.

Weight gradients are added to an fp32 `main_grad` unrounded where torch's tests have fp32 as the output. Elsewhere each
micro-batch's is rounded to bf16 once, by 2^-9 of an entry; its operands were rounded by 2^-4.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch.nn import functional as F  # noqa: N812  torch's own alias

from pretrain.plugins.constant_weights import made_once
from pretrain.reference.matmuls import Matmuls
from pretrain_cuda.kernels.scaled_mm_limits import multiple, sum_dtype

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import LinearRequest

RECIPES = {
    "tensorwise": F.ScalingType.TensorWise,
    "rowwise": F.ScalingType.RowWise,
    "block": F.ScalingType.BlockWise1x128,
    "mxfp8": F.ScalingType.BlockWise1x32,
}


class Rounding(Protocol):
    """`triton.quantize.quantize`, or its stand-in."""

    def __call__(
        self, x: Tensor, kind: str, dim: int, length: int, *, is_gradient: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return elements [outer, length] and scales [outer, groups]."""
        ...


class Operand(NamedTuple):
    """Operand of a matmul A B^T that sums over columns."""

    elements: Tensor
    """[outer, summed] in fp8, contiguous."""
    scale: Tensor
    """As `scaled_mm` takes the scales of A."""


class ScaledMatmuls(Matmuls):
    """`Matmuls` whose operands stay in fp8."""

    def __init__(self, request: LinearRequest, rounding: Rounding | None = None) -> None:
        super().__init__(request)
        self.kind, self.sum_dtype = request.quantization, sum_dtype(request)
        self.rounding: Rounding = rounding or import_module("pretrain_cuda.kernels.triton.quantize").quantize

    def operand(self, x: Tensor, dim: int, *, is_gradient: bool = False) -> Operand:
        """Return the operand of x [rows, columns] in a matmul that sums over `dim`.

        Rows that fill up the last group are zeros, which change neither scales nor sums.
        """
        step = multiple(self.kind)
        length = -(-x.shape[dim] // step) * step
        elements, scale = self.rounding(x, self.kind, dim, length, is_gradient=is_gradient)
        return Operand(elements, _arranged(scale, self.kind))

    def weight_operand(self, weight: Tensor, dim: int) -> Operand:
        """Return the operand of weight [out, in] for the output, dim 1, or for the gradient of x, dim 0.

        It is made once while the weight does not change.
        """
        return made_once(weight, ("scaled_mm", self.kind, dim), lambda: self.operand(weight, dim))

    def output(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """As `Matmuls.output`; the bias is added to the rounded product."""
        y = multiply(self.operand(_rows(x), 1), self.weight_operand(weight, 1), self.kind, x.dtype)
        y = y.view(*x.shape[:-1], -1)
        return y if bias is None else y.add_(bias)

    def input_gradient(self, grad: Tensor, weight: Tensor) -> Tensor:
        """As `Matmuls.input_gradient`."""
        of_grad = self.operand(_rows(grad), 1, is_gradient=True)
        return multiply(of_grad, self.weight_operand(weight, 0), self.kind, grad.dtype).view(*grad.shape[:-1], -1)

    def weight_gradient(self, grad: Tensor, x: Tensor) -> Tensor:
        """As `Matmuls.weight_gradient`."""
        if not self.operands.quantized_wgrad:
            return super().weight_gradient(grad, x)
        return self._summed_over_rows(grad, x, x.dtype)

    def add_weight_gradient(self, main_grad: Tensor, grad: Tensor, x: Tensor) -> None:
        """As `Matmuls.add_weight_gradient`."""
        if not self.operands.quantized_wgrad:
            super().add_weight_gradient(main_grad, grad, x)
            return
        main_grad.add_(self._summed_over_rows(grad, x, self.sum_dtype))

    def _summed_over_rows(self, grad: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
        of_grad = self.operand(grad, 0, is_gradient=True)
        return multiply(of_grad, self.operand(x, 0), self.kind, dtype)


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def _arranged(scale: Tensor, kind: str) -> Tensor:
    """Return scales [outer, groups] in the layout of torch's aten/src/ATen/native/cuda/ScaledBlas.cpp."""
    if kind == "mxfp8":
        return swizzled(scale)
    if kind == "block":
        return scale  # those of one group are neighbours in memory
    return scale.flatten().unsqueeze(1)  # strides of 1, which a transposed column does not have


def swizzled(scale: Tensor) -> Tensor:
    """Return scales [outer, groups] as E8M0 in the order of SWIZZLE_32_4_4, flat, with zeros to fill up the tiles.

    A tile of 128 x 4 is stored as 32 x 16: the scale (o, g) is at (o % 32) * 16 + (o // 32) * 4 + g (cuBLAS
    documentation, "1D Block Scaling Factors Layout").
    """
    outer, groups = scale.shape
    padded = F.pad(scale, (0, -groups % 4, 0, -outer % 128)).to(torch.float8_e8m0fnu)
    tiles = padded.view(padded.shape[0] // 128, 4, 32, padded.shape[1] // 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).flatten()


def multiply(a: Operand, b: Operand, kind: str, dtype: torch.dtype) -> Tensor:
    """Return A B^T, [outer of a, outer of b]. Sums are in fp32, on Hopper without "fast accumulation" in 14 bits."""
    swizzle = F.SwizzleType.SWIZZLE_32_4_4 if kind == "mxfp8" else F.SwizzleType.NO_SWIZZLE
    return F.scaled_mm(
        a.elements,
        b.elements.t(),
        a.scale,
        RECIPES[kind],
        b.scale.t() if kind == "rowwise" else b.scale,
        RECIPES[kind],
        swizzle_a=swizzle,
        swizzle_b=swizzle,
        output_dtype=dtype,
        use_fast_accum=False,
    )
