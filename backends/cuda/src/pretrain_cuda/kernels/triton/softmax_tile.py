"""Triton kernels of softmax for rows that stay in registers: a program reads whole rows once and writes them once.

Addresses are computed in 64 bits: scores may have more than 2^31 elements. Triton loads 16 bytes at a time only where
it can tell that neighbours are masked alike, so a causal row is read up to the next multiple of 16 and masked after.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)  # exp(x) = exp2(x * log2(e)): the hardware has exp2


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def offset(
    head: tl.tensor,
    row: tl.tensor,
    heads: tl.tensor,
    stride_batch: tl.tensor,
    stride_head: tl.tensor,
    stride_row: tl.tensor,
) -> tl.tensor:
    """Return where rows begin; heads are counted over all micro batches."""
    batch = (head // heads).to(tl.int64)
    return batch * stride_batch + (head % heads).to(tl.int64) * stride_head + row.to(tl.int64) * stride_row


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def is_read(row: tl.tensor, column: tl.tensor, queries: tl.tensor, keys: tl.tensor, causal: tl.constexpr) -> tl.tensor:
    """Return which entries of a row are loaded: of a causal one those it sees, and the rest of their 16."""
    inside = column < keys
    if causal:
        inside = inside & (column < (row + keys - queries + 16) // 16 * 16)
    return inside


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def scaled(
    scores: tl.tensor,
    mask: tl.tensor,
    scale: tl.tensor,
    inside: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    stride_key: tl.tensor,
    mask_stride_key: tl.tensor,
    causal: tl.constexpr,
    masked: tl.constexpr,
) -> tl.tensor:
    """Return scale * scores in fp32, minus infinity where a query does not see a key; both pointers are to rows."""
    x = tl.load(scores + column.to(tl.int64) * stride_key, mask=inside, other=0.0)
    seen = inside
    if causal:
        seen = seen & (column <= row + keys - queries)
    if masked:
        seen = seen & (tl.load(mask + column.to(tl.int64) * mask_stride_key, mask=inside, other=1) == 0)
    return tl.where(seen, x.to(tl.float32) * scale, float("-inf"))


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def finite(top: tl.tensor) -> tl.tensor:
    """Return the largest score of a row, 0 for one that sees no key: nothing minus that is nan."""
    return tl.where(top == float("-inf"), 0.0, top)


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def share(total: tl.tensor) -> tl.tensor:
    """Return 1 / total, 0 for a row that sees no key; a nan stays one."""
    return tl.where(total == 0.0, 0.0, 1.0 / tl.where(total == 0.0, 1.0, total))


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def forward_tile(
    scores: tl.tensor,
    mask: tl.tensor,
    weights: tl.tensor,
    scale: tl.tensor,
    stride_batch: tl.tensor,
    stride_head: tl.tensor,
    stride_row: tl.tensor,
    stride_key: tl.tensor,
    mask_stride_batch: tl.tensor,
    mask_stride_head: tl.tensor,
    mask_stride_row: tl.tensor,
    mask_stride_key: tl.tensor,
    heads: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    causal: tl.constexpr,
    masked: tl.constexpr,
    rows: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Write the contiguous weights of `rows` queries of one head; `block` is at least `keys`."""
    tiles = tl.cdiv(queries, rows)
    head = tl.program_id(0) // tiles
    row = (tl.program_id(0) % tiles * rows + tl.arange(0, rows))[:, None]
    column = tl.arange(0, block)[None, :]
    scores += offset(head, row, heads, stride_batch, stride_head, stride_row)
    mask += offset(head, row, heads, mask_stride_batch, mask_stride_head, mask_stride_row)
    inside = (row < queries) & is_read(row, column, queries, keys, causal)
    x = scaled(scores, mask, scale, inside, row, column, queries, keys, stride_key, mask_stride_key, causal, masked)
    x = tl.exp2((x - finite(tl.max(x, axis=1, keep_dims=True))) * LOG2_E)
    x *= share(tl.sum(x, axis=1, keep_dims=True))
    weights += (head.to(tl.int64) * queries + row) * keys + column
    tl.store(weights, x.to(weights.dtype.element_ty), mask=(row < queries) & (column < keys))


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def shared_gradient(weights: tl.tensor, grad: tl.tensor) -> tl.tensor:
    """Return weight * gradient, 0 where there is no weight: what is masked may have any gradient, infinity too."""
    return tl.where(weights == 0.0, 0.0, weights * grad)


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def backward_tile(
    grad: tl.tensor,
    weights: tl.tensor,
    grad_scores: tl.tensor,
    scale: tl.tensor,
    stride_batch: tl.tensor,
    stride_head: tl.tensor,
    stride_row: tl.tensor,
    stride_key: tl.tensor,
    heads: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    causal: tl.constexpr,
    rows: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Write scale * w * (g - sum(g * w)), contiguous as the weights are; weights of what is masked are zero."""
    tiles = tl.cdiv(queries, rows)
    head = tl.program_id(0) // tiles
    row = (tl.program_id(0) % tiles * rows + tl.arange(0, rows))[:, None]
    column = tl.arange(0, block)[None, :]
    inside = (row < queries) & is_read(row, column, queries, keys, causal)
    grad += offset(head, row, heads, stride_batch, stride_head, stride_row) + column.to(tl.int64) * stride_key
    g = tl.load(grad, mask=inside, other=0.0).to(tl.float32)
    here = (head.to(tl.int64) * queries + row) * keys + column
    w = tl.load(weights + here, mask=inside, other=0.0).to(tl.float32)
    g = shared_gradient(w, g)
    g = scale * (g - w * tl.sum(g, axis=1, keep_dims=True))
    tl.store(grad_scores + here, g.to(grad_scores.dtype.element_ty), mask=(row < queries) & (column < keys))
