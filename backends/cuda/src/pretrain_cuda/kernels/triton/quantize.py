"""Operands in fp8 in Triton: the bits of `pretrain.reference.quantization`, laid out for torch's `scaled_mm`.

Groups that are parts of a row are read once; a row or a matrix twice, first for its largest entry, which programs find
by an atomic maximum: of integers, so that it is the same in any order. fp8 is made with integers too, as in torch's
c10/util/Float8_e4m3fn.h, so that the bits depend on neither the GPU nor Triton's conversions. Not tuned.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from pretrain.reference.quantization import GROUPS, element_dtype

if TYPE_CHECKING:
    from torch import Tensor

WIDTH, TILE, WARPS = 128, 4096, 4
"""Entries of a row or a matrix along the summed dimension that a program has, and all its entries."""

_MANTISSA, _BIAS = 23, 127
_INF, _NAN = tl.constexpr(0x7F800000), tl.constexpr(0x7FC00000)
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)


def quantize(x: Tensor, kind: str, dim: int, length: int, *, is_gradient: bool = False) -> tuple[Tensor, Tensor]:
    """Return elements and scales of x [rows, columns] in bf16, whose matmul sums over `dim`.

    The summed dimension is filled up with zeros to `length`. Elements are [outer, length] in fp8, contiguous; scales in
    fp32 are [1, 1], or [outer, groups], of which neighbours in memory are those of one group.
    """
    dtype, group = element_dtype(kind, is_gradient=is_gradient), GROUPS.get(kind, 0)
    outer, summed = x.shape[1 - dim], x.shape[dim]
    elements = torch.empty(outer, length, dtype=torch.uint8, device=x.device)
    of_one = kind == "tensorwise"
    groups = -(-summed // group) if group else 1
    scale = torch.empty(groups, 1 if of_one else outer, dtype=torch.float32, device=x.device)
    if x.numel():
        width = group or WIDTH
        tile_outer = TILE // width
        x = x.view(torch.int16)
        grid = triton.cdiv(outer, tile_outer), triton.cdiv(length, width)
        shape = (outer, summed, x.stride(1 - dim), x.stride(dim))
        largest = torch.zeros(1 if of_one else outer, dtype=torch.int32, device=x.device) if not group else scale
        tiles = {"of_one": of_one, "tile_outer": tile_outer, "width": width, "num_warps": WARPS}
        if not group:
            _largest[grid](x, largest, *shape, **tiles)
        _round[grid](x, largest, elements, scale, *shape, length, has_group=group > 0, **_format(dtype), **tiles)
    return elements.view(dtype), scale.t()


@cache
def _format(dtype: torch.dtype) -> dict[str, int]:
    """Return what the kernel must know of fp8: see `pretrain.reference.quantization.scales` for the first two."""
    mantissa, exponent = math.frexp(torch.finfo(dtype).max)
    bits = -round(math.log2(torch.finfo(dtype).eps))  # of its mantissa
    least = _BIAS + round(math.log2(torch.finfo(dtype).smallest_normal))  # exponent of its normal numbers, as fp32's
    return {
        "carry": 2**_MANTISSA - 1 - round((2 * mantissa - 1) * 2**_MANTISSA),
        "exponent": exponent,
        "dropped": _MANTISSA - bits,
        "rebias": (least - 1) << bits,
        "smallest": least << _MANTISSA,
        "unit": (least - bits + _MANTISSA) << _MANTISSA,
    }


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def _largest(
    x: tl.tensor,
    largest: tl.tensor,
    outer: tl.tensor,
    summed: tl.tensor,
    stride_outer: tl.tensor,
    stride_summed: tl.tensor,
    of_one: tl.constexpr,
    tile_outer: tl.constexpr,
    width: tl.constexpr,
) -> None:
    o = tl.program_id(0) * tile_outer + tl.arange(0, tile_outer)
    s = tl.program_id(1) * width + tl.arange(0, width)
    inside = (o < outer)[:, None] & (s < summed)[None, :]
    places = o.to(tl.int64)[:, None] * stride_outer + s.to(tl.int64)[None, :] * stride_summed
    most = tl.max((tl.load(x + places, mask=inside, other=0).to(tl.int32) << 16) & _MAGNITUDE, axis=1)
    if of_one:
        tl.atomic_max(largest, tl.max(most, axis=0))
    else:
        tl.atomic_max(largest + o, most, mask=o < outer)


@triton.jit  # type: ignore[untyped-decorator]
def _round(
    x: tl.tensor,
    largest: tl.tensor,
    elements: tl.tensor,
    scale: tl.tensor,
    outer: tl.tensor,
    summed: tl.tensor,
    stride_outer: tl.tensor,
    stride_summed: tl.tensor,
    length: tl.tensor,
    has_group: tl.constexpr,
    carry: tl.constexpr,
    exponent: tl.constexpr,
    dropped: tl.constexpr,
    rebias: tl.constexpr,
    smallest: tl.constexpr,
    unit: tl.constexpr,
    of_one: tl.constexpr,
    tile_outer: tl.constexpr,
    width: tl.constexpr,
) -> None:
    part = tl.program_id(1)
    o = tl.program_id(0) * tile_outer + tl.arange(0, tile_outer)
    s = part * width + tl.arange(0, width)
    inside = (o < outer)[:, None] & (s < summed)[None, :]
    places = o.to(tl.int64)[:, None] * stride_outer + s.to(tl.int64)[None, :] * stride_summed
    values = tl.load(x + places, mask=inside, other=0).to(tl.int32) << 16  # the bits of fp32
    if has_group:
        amax = tl.max(values & _MAGNITUDE, axis=1)
    elif of_one:
        amax = tl.load(largest) + tl.zeros([tile_outer], tl.int32)
    else:
        amax = tl.load(largest + o, mask=o < outer, other=0)
    power = tl.maximum(((amax + carry) >> 23) - (exponent - 1), 1)  # the exponent of the scale, as fp32 has it
    is_finite = amax < _INF
    bits = tl.where(is_finite, power << 23, _NAN)
    if has_group:
        is_there = (o < outer) & (part * width < summed)  # beyond it are zeros that fill up
        tl.store(scale + part.to(tl.int64) * outer + o, bits.to(tl.float32, bitcast=True), mask=is_there)
    elif of_one:
        tl.store(scale + o, bits.to(tl.float32, bitcast=True), mask=(o == 0) & (part == 0))
    else:
        tl.store(scale + o, bits.to(tl.float32, bitcast=True), mask=(o < outer) & (part == 0))
    inverse = tl.where(is_finite, (254 - power) << 23, _NAN).to(tl.float32, bitcast=True)
    scaled = (values.to(tl.float32, bitcast=True) * inverse[:, None]).to(tl.int32, bitcast=True)
    magnitude = scaled & _MAGNITUDE
    # To nearest, ties to even: a normal number by its last bit that stays, a smaller one by fp32's own addition.
    normal = ((magnitude + ((1 << (dropped - 1)) - 1) + ((magnitude >> dropped) & 1)) >> dropped) - rebias
    one = tl.full([1, 1], unit, tl.int32).to(tl.float32, bitcast=True)
    small = (magnitude.to(tl.float32, bitcast=True) + one).to(tl.int32, bitcast=True) - unit
    found = tl.where(magnitude < smallest, small, normal)
    found = tl.where(magnitude > _INF, 0x7F, found) | ((scaled >> 24) & 0x80)
    to = elements + o.to(tl.int64)[:, None] * length + s[None, :]
    tl.store(to, found.to(tl.uint8), mask=(o < outer)[:, None] & (s < length)[None, :])
