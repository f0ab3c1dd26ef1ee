"""Names of dtypes as a recipe calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64"}


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name in a recipe, or torch's where a recipe has none."""
    return _NAMES.get(dtype, str(dtype).removeprefix("torch."))


def dtype_names(dtypes: Iterable[torch.dtype]) -> tuple[str, ...]:
    """Return the different dtypes' names, sorted."""
    return tuple(sorted(set(map(dtype_name, dtypes))))
