"""In which dtype a kernel computes."""

from __future__ import annotations

import torch


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return fp32 for 16-bit dtypes; fp32 and fp64 stay what they are."""
    return torch.promote_types(dtype, torch.float32)
