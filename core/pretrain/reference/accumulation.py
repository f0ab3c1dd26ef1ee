"""Adding a product of 16-bit matrices to an fp32 sum: a weight gradient to `main_grad`.

Tensor cores add up in fp32, and a product that comes out of them in 16 bits was rounded for nothing. torch has two
operations that keep it, on CUDA alone: `addmm` with `out_dtype` and `out`, whose kernel (ATen/native/cuda/Blas.cpp,
addmm_out_cuda_impl) leaves a sum that is its own output in place, takes an fp32 sum from torch 2.11 on; `mm` with
`out_dtype` is there in all that this project takes. What a device has is asked by a sum whose rounding would be seen.

Elsewhere the product is rounded to its dtype once, 2^-9 of each entry in bf16, as Megatron-LM does without apex: fp32
copies of both matrices would spare that, and take 3.7 times as long (measured on a CPU with AVX512-BF16).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Way: TypeAlias = Callable[[Tensor, Tensor, Tensor], None]


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a @ b to `total` in place, for a [m, k], b [k, n], total [m, n]; unrounded where the device can."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        way_of(total.device, total.dtype, a.dtype)(total, a, b)


@cache
def way_of(device: torch.device, total_dtype: torch.dtype, dtype: torch.dtype) -> Way:
    """Return the first way that loses nothing there; asked once, it computes a small sum and waits for it."""
    found = (way for way in (in_the_product, after_the_product) if _keeps(way, device, total_dtype, dtype))
    return next(found, rounded)


def in_the_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """One kernel, no further memory."""
    torch.addmm(total, a, b, out_dtype=total.dtype, out=total)


def after_the_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Two kernels and memory of the total's size."""
    total.add_(torch.mm(a, b, out_dtype=total.dtype))


def rounded(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Two kernels; the product is rounded to its dtype."""
    total.add_(a.matmul(b))


def _keeps(way: Way, device: torch.device, total_dtype: torch.dtype, dtype: torch.dtype) -> bool:
    """Whether 1/2 + 63 * 5 * 13 is 4095.5: the product rounded to fp16 or bf16 is 4096; both hold 5 and 13."""
    a, b = (torch.full((64, 64), value, dtype=dtype, device=device) for value in (5.0, 13.0))
    b[63] = 0
    total = torch.full((64, 64), 0.5, dtype=total_dtype, device=device)
    try:
        way(total, a.t(), b)
        return bool((total == 4095.5).all())
    except (RuntimeError, TypeError):  # no such operation on this device, with these dtypes, in this torch
        return False
