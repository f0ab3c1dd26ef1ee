"""Rotary position embedding in Triton, half-split as in GPT-NeoX; its gradient is the rotation by the transpose.

Queries and keys may be views of one projection: strides are taken as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from torch import Tensor

TILE, WARPS = 1024, 4
"""Entries of a half that one program rotates: some heads of one token, which have one cos and sin. Not tuned."""


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """A `RotaryFn`: rotate the first cos.shape[-1] dimensions of [s, b, n, d] in fp32; pass on the others.

    cos and sin, [s, 1, 1, rotary_size], get no gradient.
    """
    y: Tensor = _Rotate.apply(x, cos, sin)  # type: ignore[no-untyped-call]
    return y


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        cos, sin = cos.contiguous(), sin.contiguous()
        ctx.save_for_backward(cos, sin)
        return _launch(x, cos, sin, transposed=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _launch(grads[0], cos, sin, transposed=True), None, None


def _launch(x: Tensor, cos: Tensor, sin: Tensor, *, transposed: bool) -> Tensor:
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    length, batch, heads, size = x.shape
    half = cos.shape[-1] // 2
    block = triton.next_power_of_2(half)
    tile_heads = min(max(1, TILE // block), triton.next_power_of_2(heads))
    if x.numel():
        _turn[length * batch, triton.cdiv(heads, tile_heads)](
            x,
            cos,
            sin,
            y,
            batch,
            heads,
            *x.stride(),
            half=half,
            rest=size - 2 * half,
            transposed=transposed,
            tile_heads=tile_heads,
            block=block,
            rest_block=triton.next_power_of_2(size - 2 * half),
            num_warps=WARPS,
        )
    return y


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def _turn(
    x: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    y: tl.tensor,
    batch: tl.tensor,
    heads: tl.tensor,
    stride_position: tl.tensor,
    stride_batch: tl.tensor,
    stride_head: tl.tensor,
    stride_entry: tl.tensor,
    half: tl.constexpr,
    rest: tl.constexpr,
    transposed: tl.constexpr,
    tile_heads: tl.constexpr,
    block: tl.constexpr,
    rest_block: tl.constexpr,
) -> None:
    """y1 = x1 cos1 - x2 sin1 and y2 = x2 cos2 + x1 sin2 of the halves; transposed, sin1 and sin2 change places."""
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * tile_heads + tl.arange(0, tile_heads)).to(tl.int64)[:, None]
    x += token // batch * stride_position + token % batch * stride_batch + head * stride_head
    y += (token * heads + head) * (2 * half + rest)
    entry = tl.arange(0, block)
    in_half = entry < half
    inside = (head < heads) & in_half[None, :]
    angle = token // batch * (2 * half) + entry
    cos1 = tl.load(cos + angle, mask=in_half, other=0.0)[None, :]
    cos2 = tl.load(cos + angle + half, mask=in_half, other=0.0)[None, :]
    sin1 = tl.load(sin + angle, mask=in_half, other=0.0)[None, :]
    sin2 = tl.load(sin + angle + half, mask=in_half, other=0.0)[None, :]
    x1 = tl.load(x + entry[None, :] * stride_entry, mask=inside, other=0.0).to(tl.float32)
    x2 = tl.load(x + (entry + half)[None, :] * stride_entry, mask=inside, other=0.0).to(tl.float32)
    if transposed:
        y1, y2 = x1 * cos1 + x2 * sin2, x2 * cos2 - x1 * sin1
    else:
        y1, y2 = x1 * cos1 - x2 * sin1, x2 * cos2 + x1 * sin2
    tl.store(y + entry[None, :], y1.to(y.dtype.element_ty), mask=inside)
    tl.store(y + (entry + half)[None, :], y2.to(y.dtype.element_ty), mask=inside)
    if rest > 0:
        passed = 2 * half + tl.arange(0, rest_block)[None, :]
        inside = (head < heads) & (passed < 2 * half + rest)
        tl.store(y + passed, tl.load(x + passed * stride_entry, mask=inside), mask=inside)
