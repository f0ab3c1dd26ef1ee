"""Triton kernels of softmax for rows that are too long for registers: a program goes through one row twice.

The second time the row is what was read last, and comes from a cache as far as it fits in one. Every lane keeps a
maximum and a sum of its own, which are put together once, at the end of the first time.

Loops are written with `while`: range() of a tensor fails in the interpreter of triton 3.6 with numpy 2.4.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pretrain_cuda.kernels.triton.softmax_tile import LOG2_E, finite, is_read, offset, scaled, share, shared_gradient


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def end_of(row: tl.tensor, queries: tl.tensor, keys: tl.tensor, causal: tl.constexpr) -> tl.tensor:
    """Return up to where a row has keys to read; below 1 for none."""
    end = keys
    if causal:
        end = tl.minimum(keys, row + keys - queries + 1)
    return end


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def forward_long(
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
    block: tl.constexpr,
) -> None:
    """Write the contiguous weights of one query."""
    head = tl.program_id(0) // queries
    row = tl.program_id(0) % queries
    lane = tl.arange(0, block)
    scores += offset(head, row, heads, stride_batch, stride_head, stride_row)
    mask += offset(head, row, heads, mask_stride_batch, mask_stride_head, mask_stride_row)
    weights += tl.program_id(0).to(tl.int64) * keys
    top = tl.full([block], float("-inf"), tl.float32)
    total = tl.zeros([block], tl.float32)
    start, end = 0, end_of(row, queries, keys, causal)
    while start < end:
        column = start + lane
        inside = is_read(row, column, queries, keys, causal)
        x = scaled(scores, mask, scale, inside, row, column, queries, keys, stride_key, mask_stride_key, causal, masked)
        higher = tl.maximum(top, x)
        total = total * tl.exp2((top - finite(higher)) * LOG2_E) + tl.exp2((x - finite(higher)) * LOG2_E)
        top = higher
        start += block
    highest = finite(tl.max(top, axis=0))
    part = share(tl.sum(total * tl.exp2((top - highest) * LOG2_E), axis=0))
    start = 0
    while start < keys:
        column = start + lane
        inside = is_read(row, column, queries, keys, causal)
        x = scaled(scores, mask, scale, inside, row, column, queries, keys, stride_key, mask_stride_key, causal, masked)
        x = tl.exp2((x - highest) * LOG2_E) * part
        tl.store(weights + column, x.to(weights.dtype.element_ty), mask=column < keys)
        start += block


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def backward_long(
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
    block: tl.constexpr,
) -> None:
    """Write the contiguous gradient of one query's scores."""
    head = tl.program_id(0) // queries
    row = tl.program_id(0) % queries
    lane = tl.arange(0, block)
    grad += offset(head, row, heads, stride_batch, stride_head, stride_row)
    weights += tl.program_id(0).to(tl.int64) * keys
    grad_scores += tl.program_id(0).to(tl.int64) * keys
    total = tl.zeros([block], tl.float32)
    start, end = 0, end_of(row, queries, keys, causal)
    while start < end:
        column = start + lane
        inside = is_read(row, column, queries, keys, causal)
        g = tl.load(grad + column.to(tl.int64) * stride_key, mask=inside, other=0.0).to(tl.float32)
        w = tl.load(weights + column, mask=inside, other=0.0).to(tl.float32)
        total += shared_gradient(w, g)
        start += block
    whole = tl.sum(total, axis=0)
    start = 0
    while start < keys:
        column = start + lane
        inside = is_read(row, column, queries, keys, causal)
        g = tl.load(grad + column.to(tl.int64) * stride_key, mask=inside, other=0.0).to(tl.float32)
        w = tl.load(weights + column, mask=inside, other=0.0).to(tl.float32)
        g = scale * (shared_gradient(w, g) - w * whole)
        tl.store(grad_scores + column, g.to(grad_scores.dtype.element_ty), mask=column < keys)
        start += block
