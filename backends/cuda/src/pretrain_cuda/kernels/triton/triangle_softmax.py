"""Softmax and dropout of one strip of the triangle, forward and backward, in Triton.

A strip is the weights of a block of queries, [matrices, queries, keys]: its last query sees all its keys, the one
before one key less. Masked weights are zero. A dropped weight is stored with its sign set, so that the
backward pass needs neither a dropout mask nor the random numbers again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

TILE, WARPS = 4096, 8
"""Entries of a program: 16 for each thread, which is two loads of 16 bytes in fp16 or bf16; short rows share one."""

LONGEST = 4096
"""Keys of a row that is read once. A longer one is gone through in turns of that many, and read again: from a cache."""

STEPS = 1 << 16
"""Dropout draws 16 bits for each weight: a draw of Philox, which is some 60 instructions, then serves 8 weights."""


class DropoutRate:
    """Rate of dropout: the probability rounded to a multiple of 2^-16, at least one.

    Attributes:
        threshold: a random number of 16 bits below it drops a weight.
        scale: the factor of kept weights, for the rounded probability.
    """

    def __init__(self, probability: float) -> None:
        self.threshold = max(1, round(probability * STEPS))
        self.scale = STEPS / (STEPS - self.threshold)

    @staticmethod
    def seed(device: torch.device) -> Tensor:
        """Draw from the device's default generator; the number stays there, so that the host need not wait for it."""
        return torch.empty((), dtype=torch.int64, device=device).random_()


def softmax_(
    scores: Tensor, queries: int, scale: float, dropout: DropoutRate | None = None, seed: Tensor | None = None
) -> Tensor:
    """Turn scores into weights in place; return the kept weights, which multiply the values: all, without dropout.

    Args:
        scores: [..., queries, keys], contiguous; they are multiplied by `scale` in fp32 first.
        queries: rows of one matrix.
        scale: above zero.
        dropout: the rate; None drops nothing.
        seed: int64, one for all strips of a call; needed to drop.
    """
    kept = None if dropout is None else torch.empty_like(scores)
    rows, keys, block = _sizes(scores)
    _forward[triton.cdiv(rows, TILE // block),](
        scores,
        kept,
        seed,
        rows,
        queries,
        keys,
        scale,
        0 if dropout is None else dropout.threshold,
        1.0 if dropout is None else dropout.scale,
        drops=dropout is not None,
        tile_rows=TILE // block,
        block=block,
        turns=triton.cdiv(keys, block),
        num_warps=WARPS,
    )
    return scores if kept is None else kept


def softmax_backward_(grad: Tensor, weights: Tensor, queries: int, dropout: DropoutRate | None = None) -> Tensor:
    """Turn the gradient of the kept weights into that of the scores, in place; return the kept weights again.

    Args:
        grad: [..., queries, keys], contiguous; becomes the gradient of the scores after their scale.
        weights: those that `softmax_` wrote; not changed.
        queries: as before.
        dropout: as before.
    """
    kept = None if dropout is None else torch.empty_like(weights)
    rows, keys, block = _sizes(weights)
    _backward[triton.cdiv(rows, TILE // block),](
        grad,
        weights,
        kept,
        rows,
        queries,
        keys,
        1.0 if dropout is None else dropout.scale,
        drops=dropout is not None,
        tile_rows=TILE // block,
        block=block,
        turns=triton.cdiv(keys, block),
        num_warps=WARPS,
    )
    return weights if kept is None else kept


def _sizes(strip: Tensor) -> tuple[int, int, int]:
    """Return rows, keys, and columns of a tile."""
    keys = strip.shape[-1]
    return strip.numel() // keys, keys, min(max(16, triton.next_power_of_2(keys)), LONGEST)


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def _forward(
    scores: tl.tensor,
    kept: tl.tensor,
    seed: tl.tensor,
    rows: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    scale: tl.tensor,
    threshold: tl.tensor,
    kept_scale: tl.tensor,
    drops: tl.constexpr,
    tile_rows: tl.constexpr,
    block: tl.constexpr,
    turns: tl.constexpr,
) -> None:
    row, seen, start = _place(rows, queries, keys, tile_rows)
    unseen = tl.where(row < rows, float("-inf"), 0.0)[:, None]  # rows beyond the last are zeros, not nan
    largest = tl.full((tile_rows,), float("-inf"), tl.float32)
    total = tl.zeros((tile_rows,), tl.float32)
    for turn in range(turns):
        x = _load(scores, start, seen, keys, turn * block, unseen, block) * scale
        larger = tl.maximum(largest, tl.max(x, axis=1))  # finite from the first turn on: all see the first key
        total = total * tl.exp(largest - larger) + tl.sum(tl.exp(x - larger[:, None]), axis=1)
        largest = larger
    for turn in range(turns):
        x = _load(scores, start, seen, keys, turn * block, unseen, block) * scale
        weights = tl.exp(x - largest[:, None]) / total[:, None]
        column = turn * block + tl.arange(0, block)[None, :]
        inside = (row < rows)[:, None] & (column < keys)
        if drops:
            keeps = _random_bits(seed, row, keys, turn * block, block) >= threshold
            _store(kept, start, column, tl.where(keeps, weights * kept_scale, 0.0), inside)
            weights = tl.where(keeps, weights, -weights)
        _store(scores, start, column, weights, inside)


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def _backward(
    grad: tl.tensor,
    saved: tl.tensor,
    kept: tl.tensor,
    rows: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    kept_scale: tl.tensor,
    drops: tl.constexpr,
    tile_rows: tl.constexpr,
    block: tl.constexpr,
    turns: tl.constexpr,
) -> None:
    """With g the gradient of the weights, that of the scores is weights * (g - sum(weights * g))."""
    row, seen, start = _place(rows, queries, keys, tile_rows)
    total = tl.zeros((tile_rows,), tl.float32)
    for turn in range(turns):
        weights = _load(saved, start, seen, keys, turn * block, 0.0, block)
        g = _load(grad, start, seen, keys, turn * block, 0.0, block)
        if drops:
            g = tl.where(weights > 0, g * kept_scale, 0.0)
        total += tl.sum(tl.abs(weights) * g, axis=1)
    for turn in range(turns):
        weights = _load(saved, start, seen, keys, turn * block, 0.0, block)
        g = _load(grad, start, seen, keys, turn * block, 0.0, block)
        column = turn * block + tl.arange(0, block)[None, :]
        inside = (row < rows)[:, None] & (column < keys)
        if drops:
            _store(kept, start, column, tl.where(weights > 0, weights * kept_scale, 0.0), inside)
            g = tl.where(weights > 0, g * kept_scale, 0.0)
        _store(grad, start, column, tl.abs(weights) * (g - total[:, None]), inside)


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def _place(
    rows: tl.tensor, queries: tl.tensor, keys: tl.tensor, tile_rows: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return the rows of this program, how many keys each sees, and where each starts."""
    row = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    seen = tl.where(row < rows, keys - queries + row % queries + 1, 0)
    return row, seen, row.to(tl.int64)[:, None] * keys


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def _load(
    strip: tl.tensor,
    start: tl.tensor,
    seen: tl.tensor,
    keys: tl.tensor,
    first: tl.tensor,
    unseen: tl.tensor,
    block: tl.constexpr,
) -> tl.tensor:
    """Return a tile in fp32. What is read ends at a multiple of 16: a mask that may end anywhere loads one by one."""
    column = first + tl.arange(0, block)[None, :]
    is_read = (column < (seen[:, None] + 15) // 16 * 16) & (column < keys)
    entries = tl.load(strip + start + column, mask=is_read, other=0.0).to(tl.float32)
    return tl.where(column < seen[:, None], entries, unseen)


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def _store(strip: tl.tensor, start: tl.tensor, column: tl.tensor, value: tl.tensor, inside: tl.tensor) -> None:
    tl.store(strip + start + column, value.to(strip.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def _random_bits(seed: tl.tensor, row: tl.tensor, keys: tl.tensor, first: tl.tensor, block: tl.constexpr) -> tl.tensor:
    """Return 16 random bits for each entry. The counter (column / 8, row, keys) comes once in all strips of a call."""
    column = (first // 8 + tl.arange(0, block // 8))[None, :]
    zero = (column + row[:, None]) * 0
    a, b, c, d = tl.philox(tl.load(seed), zero + column, zero + row[:, None], zero + keys, zero)
    words = tl.interleave(tl.interleave(a, b), tl.interleave(c, d))
    return tl.interleave(words & 0xFFFF, words >> 16).to(tl.int32)
