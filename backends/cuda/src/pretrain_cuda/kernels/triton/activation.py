"""Bias and GELU or SwiGLU in Triton; the backward pass computes the activation again from the input.

A program has a tile of columns, and in the backward pass all tiles of some rows one after the other: the gradient of
the bias is added up there in fp32, and the sums of all programs afterwards, always in the same order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import ActivationRequest

TILE_ROWS, TILE_COLUMNS, WARPS = 8, 256, 4
"""16 entries of a tensor in a thread: two vectors of 16 bytes in fp16 or bf16. Not tuned."""

STEPS = 16
"""Tiles of one program of the backward pass: the partial sums of the bias are 1/32 of an fp16 or bf16 gradient."""


class Activation:
    """An `ActivationFn`: computes in fp32, rounds once."""

    def __init__(self, request: ActivationRequest) -> None:
        self.kind = request.kind

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return [..., features] for x [..., features] (swiglu: [..., 2 * features])."""
        y: Tensor = _Activation.apply(x, bias, self.kind)  # type: ignore[no-untyped-call]
        return y


class _Activation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, kind: str) -> Tensor:
        x, bias = x.contiguous(), None if bias is None else bias.contiguous()
        columns = x.shape[-1] // 2 if kind == "swiglu" else x.shape[-1]
        y = x.new_empty((*x.shape[:-1], columns))
        rows = y.numel() // columns
        if rows:
            grid = triton.cdiv(rows, TILE_ROWS), triton.cdiv(columns, TILE_COLUMNS)
            _forward[grid](
                x,
                x if bias is None else bias,
                y,
                rows,
                columns,
                kind=kind,
                has_bias=bias is not None,
                tile_rows=TILE_ROWS,
                tile_columns=TILE_COLUMNS,
                num_warps=WARPS,
            )
        ctx.save_for_backward(x, bias)
        ctx.kind, ctx.rows, ctx.columns = kind, rows, columns
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, bias = ctx.saved_tensors
        grad_x = torch.empty_like(x)
        programs = triton.cdiv(ctx.rows, TILE_ROWS * STEPS)
        sums = None if bias is None else torch.empty(programs, x.shape[-1], dtype=torch.float32, device=x.device)
        if programs:
            _backward[programs, triton.cdiv(ctx.columns, TILE_COLUMNS)](
                x,
                x if bias is None else bias,
                grads[0].contiguous(),
                grad_x,
                grad_x if sums is None else sums,
                ctx.rows,
                ctx.columns,
                kind=ctx.kind,
                has_bias=bias is not None,
                steps=STEPS,
                tile_rows=TILE_ROWS,
                tile_columns=TILE_COLUMNS,
                num_warps=WARPS,
            )
        return grad_x, None if sums is None else sums.sum(dim=0).to(bias.dtype), None


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def _biased(
    x: tl.tensor,
    bias: tl.tensor,
    offset: tl.tensor,
    column: tl.tensor,
    inside: tl.tensor,
    in_row: tl.tensor,
    has_bias: tl.constexpr,
) -> tl.tensor:
    y = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
    if has_bias:
        y += tl.load(bias + column, mask=in_row, other=0.0).to(tl.float32)[None, :]
    return y


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def _share(x: tl.tensor, kind: tl.constexpr) -> tl.tensor:
    """Return f, where the activation is x f(x)."""
    if kind == "gelu":
        return 0.5 * (1 + tl.math.erf(x * 0.7071067811865476))  # sqrt(1 / 2)
    if kind == "gelu_tanh":
        # (1 + tanh(u)) / 2 = sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3)
        return tl.sigmoid(1.5957691216057308 * x * (1 + 0.044715 * x * x))
    return tl.sigmoid(x)


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def _slope(x: tl.tensor, share: tl.tensor, kind: tl.constexpr) -> tl.tensor:
    """Return the derivative f(x) + x f'(x)."""
    if kind == "gelu":
        return share + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)  # sqrt(1 / (2 pi))
    if kind == "gelu_tanh":
        return share + x * share * (1 - share) * 1.5957691216057308 * (1 + 3 * 0.044715 * x * x)
    return share + x * share * (1 - share)


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def _forward(
    x: tl.tensor,
    bias: tl.tensor,
    y: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    kind: tl.constexpr,
    has_bias: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
) -> None:
    row = (tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)).to(tl.int64)[:, None]
    column = tl.program_id(1) * tile_columns + tl.arange(0, tile_columns)
    in_row = column < columns
    inside = (row < rows) & in_row[None, :]
    parts: tl.constexpr = 2 if kind == "swiglu" else 1
    offset = row * (columns * parts) + column[None, :]
    first = _biased(x, bias, offset, column, inside, in_row, has_bias)
    result = first * _share(first, kind)
    if parts == 2:
        result *= _biased(x, bias, offset + columns, column + columns, inside, in_row, has_bias)
    tl.store(y + row * columns + column[None, :], result.to(y.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def _backward(
    x: tl.tensor,
    bias: tl.tensor,
    grad_y: tl.tensor,
    grad_x: tl.tensor,
    sums: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    kind: tl.constexpr,
    has_bias: tl.constexpr,
    steps: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
) -> None:
    program = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * tile_columns + tl.arange(0, tile_columns)
    in_row = column < columns
    parts: tl.constexpr = 2 if kind == "swiglu" else 1
    first_sum = tl.zeros((tile_rows, tile_columns), tl.float32)
    second_sum = tl.zeros((tile_rows, tile_columns), tl.float32)
    for step in range(steps):
        row = ((program * steps + step) * tile_rows + tl.arange(0, tile_rows))[:, None]
        inside = (row < rows) & in_row[None, :]
        offset = row * (columns * parts) + column[None, :]
        grad = tl.load(grad_y + row * columns + column[None, :], mask=inside, other=0.0).to(tl.float32)
        first = _biased(x, bias, offset, column, inside, in_row, has_bias)
        share = _share(first, kind)
        if parts == 2:
            grad_second = grad * first * share
            grad *= _biased(x, bias, offset + columns, column + columns, inside, in_row, has_bias)
            tl.store(grad_x + offset + columns, grad_second.to(grad_x.dtype.element_ty), mask=inside)
            second_sum += grad_second
        grad *= _slope(first, share, kind)
        tl.store(grad_x + offset, grad.to(grad_x.dtype.element_ty), mask=inside)
        first_sum += grad
    if has_bias:
        here = sums + program * (columns * parts) + column
        tl.store(here, tl.sum(first_sum, axis=0), mask=in_row)
        if parts == 2:
            tl.store(here + columns, tl.sum(second_sum, axis=0), mask=in_row)
