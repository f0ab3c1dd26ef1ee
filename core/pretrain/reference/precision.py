"""Accumulation dtype of the kernels."""

from __future__ import annotations

import torch


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return fp32 for fp16 and bf16; fp32 and fp64 are unchanged."""
    return torch.promote_types(dtype, torch.float32)
