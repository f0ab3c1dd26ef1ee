"""Triton kernels of a norm's backward pass for rows that are too long for the registers of one program.

Whole rows of 12288 with the sums of their weight gradients take 280 bytes of local memory for each thread, by ptxas,
which is four times what the rows themselves move. So the two are split: one kernel goes through a row twice, the second
time from a cache, and another adds up columns. Together they read the input and its gradient twice where short rows do
once, as torch's do.

Loops are written with `while`: range() of a tensor fails in the interpreter of triton 3.6 with numpy 2.4.
"""

from __future__ import annotations

import triton
import triton.language as tl

BLOCK, WARPS = 4096, 16
"""Entries of a row at a time, 8 of each tensor in a thread: three such programs fit on a multiprocessor, and the rows
that all of them go through fit into the cache of an A100 or H100. Chosen by that, not measured."""

TILE_ROWS, TILE_COLUMNS, TILE_WARPS = 16, 128, 4
"""Tiles of the sums: 16 entries in a thread, and 256 neighbouring bytes of fp16 or bf16 rows."""

CHUNKS = 16
"""Programs that share the rows of a tile's columns; their sums are added afterwards, always in the same order."""


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def row_terms(
    x: tl.tensor,
    weight: tl.tensor,
    grad_y: tl.tensor,
    average: tl.tensor,
    inverse: tl.tensor,
    column: tl.tensor,
    columns: tl.tensor,
) -> tuple[tl.tensor, tl.tensor]:
    """Return (x - mean) / deviation and grad_y * weight of one row's columns; the gradient is 0 past the last."""
    inside = column < columns
    normal = (tl.load(x + column, mask=inside, other=0.0).to(tl.float32) - average) * inverse
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    return normal, tl.load(grad_y + column, mask=inside, other=0.0).to(tl.float32) * factor


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def backward_row(
    x: tl.tensor,
    weight: tl.tensor,
    grad_y: tl.tensor,
    mean: tl.tensor,
    rstd: tl.tensor,
    grad_x: tl.tensor,
    columns: tl.tensor,
    centred: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Write the gradient of one row: see norm for the formula."""
    row = tl.program_id(0).to(tl.int64)
    x += row * columns
    grad_y += row * columns
    grad_x += row * columns
    inverse = tl.load(rstd + row)
    average = 0.0
    if centred:
        average = tl.load(mean + row)
    lane = tl.arange(0, block)
    along = tl.zeros([block], tl.float32)
    total = tl.zeros([block], tl.float32)
    start = 0
    while start < columns:
        normal, grad = row_terms(x, weight, grad_y, average, inverse, start + lane, columns)
        along += grad * normal
        if centred:
            total += grad
        start += block
    slope = tl.sum(along, axis=0) / columns
    shift = tl.sum(total, axis=0) / columns
    start = 0
    while start < columns:
        column = start + lane
        normal, grad = row_terms(x, weight, grad_y, average, inverse, column, columns)
        result = (grad - normal * slope - shift) * inverse
        tl.store(grad_x + column, result.to(grad_x.dtype.element_ty), mask=column < columns)
        start += block


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def backward_columns(
    x: tl.tensor,
    grad_y: tl.tensor,
    mean: tl.tensor,
    rstd: tl.tensor,
    sums: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    centred: tl.constexpr,
    has_bias: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
) -> None:
    """Write sums of grad_y (x - mean) / deviation, and of grad_y, over a chunk's rows: [1 or 2, chunks, columns]."""
    chunk, chunks = tl.program_id(1), tl.num_programs(1)
    column = tl.program_id(0) * tile_columns + tl.arange(0, tile_columns)
    in_row = column < columns
    weight_sum = tl.zeros((tile_rows, tile_columns), tl.float32)
    bias_sum = tl.zeros((tile_rows, tile_columns), tl.float32)
    tile = chunk
    while tile * tile_rows < rows:
        row = tile * tile_rows + tl.arange(0, tile_rows)
        inside = (row < rows)[:, None] & in_row[None, :]
        offset = row.to(tl.int64)[:, None] * columns + column[None, :]
        normal = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(grad_y + offset, mask=inside, other=0.0).to(tl.float32)
        if centred:
            normal -= tl.load(mean + row, mask=row < rows, other=0.0)[:, None]
        weight_sum += grad * normal * tl.load(rstd + row, mask=row < rows, other=0.0)[:, None]
        if has_bias:
            bias_sum += grad
        tile += chunks
    here = chunk.to(tl.int64) * columns + column
    tl.store(sums + here, tl.sum(weight_sum, axis=0), mask=in_row)
    if has_bias:
        tl.store(sums + chunks.to(tl.int64) * columns + here, tl.sum(bias_sum, axis=0), mask=in_row)
