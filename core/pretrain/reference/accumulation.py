"""Accumulation dtype of the kernels, and the sum of a weight gradient and an fp32 `main_grad`.

Tensor cores accumulate in fp32, so rounding their result to fp16 or bf16 only loses precision. torch has two operations
that do not round it, only on CUDA. `addmm` with `out_dtype` and `out` accepts an fp32 sum from torch 2.11 on; its
kernel (ATen/native/cuda/Blas.cpp, addmm_out_cuda_impl) adds in place if the sum is also the output. `mm` with
`out_dtype` exists in all supported versions. A test sum, whose rounding would be visible, shows what a device supports.

Elsewhere the matmul is rounded to its dtype once, 2^-9 of each entry in bf16, as in Megatron-LM without apex: fp32
copies of both matrices would avoid that, and take 3.7 times as long (measured on a CPU with AVX512-BF16).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch._subclasses.fake_tensor import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    AddMatmul: TypeAlias = Callable[[Tensor, Tensor, Tensor], None]


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return fp32 for fp16 and bf16; fp32 and fp64 are unchanged."""
    return torch.promote_types(dtype, torch.float32)


def add_matmul(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a @ b to `total` in place, for a [m, k], b [k, n], total [m, n]; unrounded if the device supports that."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    elif isinstance(total, FakeTensor):  # a sum of these says nothing of the device, and the answer would be kept
        rounded(total, a, b)
    else:
        accumulation_for(total.device, total.dtype, a.dtype)(total, a, b)


def add_batched_matmul(total: Tensor, a: Tensor, b: Tensor, scale: float = 1.0) -> None:
    """Add scale * a @ b to `total` in place, for a [n, m, k], b [n, k, l]; rounded first if the dtypes differ."""
    if total.dtype == a.dtype:
        total.baddbmm_(a, b, alpha=scale)
    else:
        total.add_(torch.bmm(a, b), alpha=scale)


@cache
def accumulation_for(device: torch.device, total_dtype: torch.dtype, dtype: torch.dtype) -> AddMatmul:
    """Return the first exact method of a device. The first call computes a small sum and waits for it; it is cached."""
    exact = (add for add in (fused_add, separate_add) if _is_exact(add, device, total_dtype, dtype))
    return next(exact, rounded)


def fused_add(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add with one kernel and no additional memory."""
    torch.addmm(total, a, b, out_dtype=total.dtype, out=total)


def separate_add(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add with two kernels and memory of the total's size."""
    total.add_(torch.mm(a, b, out_dtype=total.dtype))


def rounded(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add with two kernels; the matmul is rounded to its dtype."""
    total.add_(a.matmul(b))


def _is_exact(add: AddMatmul, device: torch.device, total_dtype: torch.dtype, dtype: torch.dtype) -> bool:
    """Return whether 1/2 + 63 * 5 * 13 is 4095.5, not 4096 as after rounding to fp16 or bf16 (both hold 5 and 13)."""
    a, b = (torch.full((64, 64), value, dtype=dtype, device=device) for value in (5.0, 13.0))
    b[63] = 0
    total = torch.full((64, 64), 0.5, dtype=total_dtype, device=device)
    try:
        add(total, a.t(), b)
        return bool((total == 4095.5).all())
    except (RuntimeError, TypeError):  # no such operation on this device, with these dtypes, in this torch
        return False
