"""Dtype of matmuls on a CPU."""

from __future__ import annotations

import torch


def matmul_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the fast dtype for matmuls, at least as exact: fp32 for fp16 without AVX512-FP16 or AMX-FP16.

    Without them torch multiplies fp16 in a plain loop, several hundred times slower than fp32.
    """
    return torch.float32 if dtype is torch.float16 and not _multiplies_fp16() else dtype


def _multiplies_fp16() -> bool:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())  # noqa: SLF001  torch has no public function
