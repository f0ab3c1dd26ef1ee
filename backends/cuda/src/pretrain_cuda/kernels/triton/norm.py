"""Layer norm and RMS norm in Triton: a row is read once forward, and backward where it is not longer than LONGEST."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from pretrain.reference.norm import refuse_bias
from pretrain_cuda.kernels.triton import norm_long

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import NormRequest

PROGRAMS = 256
"""Programs of the backward pass, about two on each multiprocessor: each adds up the weight gradient of its rows, and
their sums are added afterwards, always in the same order."""

LONGEST = 8192
"""Entries of a row that stays in registers in the backward pass, with its share of the weights' gradients."""

TILE = 4096
"""Entries of short rows that one program holds at a time: enough loads under way to keep the memory busy."""


class Norm:
    """A `NormFn`: statistics and sums in fp32, weights in any dtype."""

    def __init__(self, request: NormRequest) -> None:
        self.epsilon, self.centred = request.epsilon, request.kind == "LayerNorm"

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return [..., h] in the dtype of `x`."""
        if not self.centred:
            refuse_bias(bias)
        y: Tensor = _Norm.apply(x, weight, bias, self.epsilon, self.centred)  # type: ignore[no-untyped-call]
        return y


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float, centred: bool) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        bias = None if bias is None else bias.contiguous()
        y = torch.empty_like(x)
        columns = weight.numel()
        rows = x.numel() // columns
        mean, rstd = torch.empty(2, rows, dtype=torch.float32, device=x.device)
        tile_rows, block, warps = _shape(columns)
        if rows:
            _forward[triton.cdiv(rows, tile_rows),](
                x,
                weight,
                weight if bias is None else bias,
                y,
                mean,
                rstd,
                rows,
                columns,
                epsilon,
                centred=centred,
                has_bias=bias is not None,
                tile_rows=tile_rows,
                block=block,
                num_warps=warps,
            )
        ctx.save_for_backward(x, weight, mean, rstd)
        ctx.centred, ctx.bias_dtype = centred, None if bias is None else bias.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, rstd = ctx.saved_tensors
        has_bias = ctx.bias_dtype is not None
        way = _backward_short if weight.numel() <= LONGEST else _backward_long
        grad_x, sums = way(x, weight, grads[0].contiguous(), mean, rstd, centred=ctx.centred, has_bias=has_bias)
        whole = sums.sum(dim=1)
        return grad_x, whole[0].to(weight.dtype), whole[1].to(ctx.bias_dtype) if has_bias else None, None, None


def _backward_short(
    x: Tensor, weight: Tensor, grad_y: Tensor, mean: Tensor, rstd: Tensor, *, centred: bool, has_bias: bool
) -> tuple[Tensor, Tensor]:
    """Return the input's gradient and partial sums of the weights' [1 or 2, programs, h]."""
    grad_x, columns, rows = torch.empty_like(x), weight.numel(), mean.numel()
    tile_rows, block, warps = _shape(columns)
    programs = min(PROGRAMS, triton.cdiv(rows, tile_rows))
    sums = torch.empty(1 + has_bias, programs, columns, dtype=torch.float32, device=x.device)
    if rows:
        _backward[programs,](
            x,
            weight,
            grad_y,
            mean,
            rstd,
            grad_x,
            sums,
            rows,
            columns,
            centred=centred,
            has_bias=has_bias,
            tile_rows=tile_rows,
            block=block,
            num_warps=warps,
        )
    return grad_x, sums


def _backward_long(
    x: Tensor, weight: Tensor, grad_y: Tensor, mean: Tensor, rstd: Tensor, *, centred: bool, has_bias: bool
) -> tuple[Tensor, Tensor]:
    """Do the same by two kernels."""
    grad_x, columns, rows = torch.empty_like(x), weight.numel(), mean.numel()
    chunks = min(norm_long.CHUNKS, triton.cdiv(rows, norm_long.TILE_ROWS))
    sums = torch.empty(1 + has_bias, chunks, columns, dtype=torch.float32, device=x.device)
    if rows:
        norm_long.backward_row[rows,](
            x,
            weight,
            grad_y,
            mean,
            rstd,
            grad_x,
            columns,
            centred=centred,
            block=norm_long.BLOCK,
            num_warps=norm_long.WARPS,
        )
        norm_long.backward_columns[triton.cdiv(columns, norm_long.TILE_COLUMNS), chunks](
            x,
            grad_y,
            mean,
            rstd,
            sums,
            rows,
            columns,
            centred=centred,
            has_bias=has_bias,
            tile_rows=norm_long.TILE_ROWS,
            tile_columns=norm_long.TILE_COLUMNS,
            num_warps=norm_long.TILE_WARPS,
        )
    return grad_x, sums


def _shape(columns: int) -> tuple[int, int, int]:
    """Return rows and columns of a tile and its warps: 16 entries of each tensor in a thread, up to 32 warps."""
    block = triton.next_power_of_2(columns)
    rows = max(1, TILE // block)
    return rows, block, min(32, max(4, rows * block // 512))


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def _forward(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    y: tl.tensor,
    mean: tl.tensor,
    rstd: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    epsilon: tl.tensor,
    centred: tl.constexpr,
    has_bias: tl.constexpr,
    tile_rows: tl.constexpr,
    block: tl.constexpr,
) -> None:
    row = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    column = tl.arange(0, block)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    offset = row.to(tl.int64)[:, None] * columns + column[None, :]
    entry = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
    if centred:
        average = tl.sum(entry, axis=1) / columns
        tl.store(mean + row, average, mask=row < rows)
        entry = tl.where(inside, entry - average[:, None], 0.0)
    inverse = tl.math.rsqrt(tl.sum(entry * entry, axis=1) / columns + epsilon)
    tl.store(rstd + row, inverse, mask=row < rows)
    factor = tl.load(weight + column, mask=column < columns, other=0.0).to(tl.float32)
    result = entry * inverse[:, None] * factor[None, :]
    if has_bias:
        result += tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)[None, :]
    tl.store(y + offset, result.to(y.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def _backward(
    x: tl.tensor,
    weight: tl.tensor,
    grad_y: tl.tensor,
    mean: tl.tensor,
    rstd: tl.tensor,
    grad_x: tl.tensor,
    sums: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    centred: tl.constexpr,
    has_bias: tl.constexpr,
    tile_rows: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """With n = (x - mean) / deviation and g = grad_y * weight: grad_x = (g - mean(g) - n mean(g n)) / deviation."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, block)
    in_row = column < columns
    factor = tl.load(weight + column, mask=in_row, other=0.0).to(tl.float32)[None, :]
    weight_sum = tl.zeros((tile_rows, block), tl.float32)
    bias_sum = tl.zeros((tile_rows, block), tl.float32)
    tile = program
    while tile * tile_rows < rows:  # range() of a tensor fails in triton 3.6's interpreter with numpy 2.4
        row = tile * tile_rows + tl.arange(0, tile_rows)
        inside = (row < rows)[:, None] & in_row[None, :]
        offset = row.to(tl.int64)[:, None] * columns + column[None, :]
        normal = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(grad_y + offset, mask=inside, other=0.0).to(tl.float32)
        inverse = tl.load(rstd + row, mask=row < rows, other=0.0)[:, None]
        if centred:
            normal = tl.where(inside, normal - tl.load(mean + row, mask=row < rows, other=0.0)[:, None], 0.0)
        normal *= inverse
        weight_sum += grad * normal
        if has_bias:
            bias_sum += grad
        grad *= factor
        result = grad - normal * (tl.sum(grad * normal, axis=1) / columns)[:, None]
        if centred:
            result -= (tl.sum(grad, axis=1) / columns)[:, None]
        tl.store(grad_x + offset, (result * inverse).to(grad_x.dtype.element_ty), mask=inside)
        tile += programs
    here = program.to(tl.int64) * columns + column
    tl.store(sums + here, tl.sum(weight_sum, axis=0), mask=in_row)
    if has_bias:
        tl.store(sums + programs.to(tl.int64) * columns + here, tl.sum(bias_sum, axis=0), mask=in_row)
