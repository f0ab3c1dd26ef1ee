"""residual + dropout(x + bias) in Triton; the backward pass draws the dropout mask again instead of storing it.

Every call draws a seed from the device's default generator, on the device: saving, restoring or forking the
generator determines the dropout, without host synchronization. From the seed Philox (Salmon et al. 2011) makes four
words of 32 bits at each count, for as many rows of a tile; a tile counts alike in both passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import BiasDropoutAddRequest

QUARTER, COLUMNS, WARPS = 4, 256, 4
"""Rows of a quarter of a tile, which has one of Philox' four words, and columns: a thread reads a quarter's tensor
by one load of 16 bytes in fp16 or bf16. Not tuned."""

STEPS = 16
"""Tiles of one program of the backward pass: the partial sums of the bias are 1/128 of an fp16 or bf16 gradient."""


class BiasDropoutAdd:
    """A `BiasDropoutAddFn`: computes in fp32, rounds once."""

    def __init__(self, request: BiasDropoutAddRequest) -> None:
        self.dropout = request.dropout

    def __call__(self, x: Tensor, bias: Tensor | None, residual: Tensor, *, training: bool = True) -> Tensor:
        """Return [s, b, h]."""
        dropout = self.dropout if training else 0.0
        y: Tensor = _BiasDropoutAdd.apply(x, bias, residual, dropout)  # type: ignore[no-untyped-call]
        return y


class _BiasDropoutAdd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, residual: Tensor, dropout: float) -> Tensor:
        x, residual = x.contiguous(), residual.contiguous()
        y = torch.empty_like(x)
        seed = _seed(x.device) if dropout else None
        columns = x.shape[-1]
        rows = x.numel() // columns
        if rows:
            _forward[triton.cdiv(rows, 4 * QUARTER), triton.cdiv(columns, COLUMNS)](
                x,
                x if bias is None else bias.contiguous(),
                residual,
                y,
                x if seed is None else seed,
                rows,
                columns,
                *_threshold_and_scale(dropout),
                drops=seed is not None,
                has_bias=bias is not None,
                quarter=QUARTER,
                tile_columns=COLUMNS,
                num_warps=WARPS,
            )
        ctx.save_for_backward(seed)
        ctx.dropout, ctx.bias_dtype, ctx.rows = dropout, None if bias is None else bias.dtype, rows
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        (seed,) = ctx.saved_tensors
        has_bias = ctx.bias_dtype is not None
        columns = grad.shape[-1]
        if seed is None:
            return grad, grad.reshape(-1, columns).sum(dim=0) if has_bias else None, grad, None
        grad = grad.contiguous()
        grad_x = torch.empty_like(grad)
        programs = triton.cdiv(ctx.rows, 4 * QUARTER * STEPS)
        sums = torch.empty(programs, columns, dtype=torch.float32, device=grad.device) if has_bias else grad_x
        if programs:
            _backward[programs, triton.cdiv(columns, COLUMNS)](
                grad,
                grad_x,
                sums,
                seed,
                ctx.rows,
                columns,
                *_threshold_and_scale(ctx.dropout),
                has_bias=has_bias,
                steps=STEPS,
                quarter=QUARTER,
                tile_columns=COLUMNS,
                num_warps=WARPS,
            )
        return grad_x, sums.sum(dim=0).to(ctx.bias_dtype) if has_bias else None, grad, None


def _seed(device: torch.device) -> Tensor:
    return torch.empty(1, dtype=torch.int64, device=device).random_()


def _threshold_and_scale(dropout: float) -> tuple[int, float]:
    """Return the signed word below which an entry is dropped, and the factor of the others."""
    return min(round(dropout * 2**32), 2**32 - 1) - 2**31, 1 / (1 - dropout)


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def _words(
    seed: tl.tensor, tile: tl.tensor, columns: tl.tensor, quarter: tl.constexpr, tile_columns: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Return 32 random bits for every entry of the four quarters of a tile."""
    within = tl.arange(0, quarter)[:, None] * tile_columns + tl.arange(0, tile_columns)[None, :]
    tiles = tl.cdiv(columns, tile_columns)
    return tl.randint4x(tl.load(seed), (tile * tiles + tl.program_id(1)) * (quarter * tile_columns) + within)  # type: ignore[no-any-return]


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def _kept(value: tl.tensor, word: tl.tensor, threshold: tl.tensor, scale: tl.tensor) -> tl.tensor:
    return tl.where(word.to(tl.int32, bitcast=True) < threshold, 0.0, value * scale)


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def _forward(
    x: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    y: tl.tensor,
    seed: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    threshold: tl.tensor,
    scale: tl.tensor,
    drops: tl.constexpr,
    has_bias: tl.constexpr,
    quarter: tl.constexpr,
    tile_columns: tl.constexpr,
) -> None:
    tile = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * tile_columns + tl.arange(0, tile_columns)
    if drops:
        words = _words(seed, tile, columns, quarter, tile_columns)
    if has_bias:
        shift = tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)[None, :]
    for part in tl.static_range(4):
        row = ((tile * 4 + part) * quarter + tl.arange(0, quarter))[:, None]
        inside = (row < rows) & (column < columns)[None, :]
        offset = row * columns + column[None, :]
        value = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
        if has_bias:
            value += shift
        if drops:
            value = _kept(value, words[part], threshold, scale)
        value += tl.load(residual + offset, mask=inside, other=0.0).to(tl.float32)
        tl.store(y + offset, value.to(y.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def _backward(
    grad_y: tl.tensor,
    grad_x: tl.tensor,
    sums: tl.tensor,
    seed: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    threshold: tl.tensor,
    scale: tl.tensor,
    has_bias: tl.constexpr,
    steps: tl.constexpr,
    quarter: tl.constexpr,
    tile_columns: tl.constexpr,
) -> None:
    program = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * tile_columns + tl.arange(0, tile_columns)
    in_row = column < columns
    total = tl.zeros((quarter, tile_columns), tl.float32)
    for step in range(steps):
        tile = program * steps + step
        words = _words(seed, tile, columns, quarter, tile_columns)
        for part in tl.static_range(4):
            row = ((tile * 4 + part) * quarter + tl.arange(0, quarter))[:, None]
            inside = (row < rows) & in_row[None, :]
            offset = row * columns + column[None, :]
            grad = tl.load(grad_y + offset, mask=inside, other=0.0).to(tl.float32)
            grad = _kept(grad, words[part], threshold, scale)
            tl.store(grad_x + offset, grad.to(grad_x.dtype.element_ty), mask=inside)
            total += grad
    if has_bias:
        tl.store(sums + program * columns + column, tl.sum(total, axis=0), mask=in_row)
