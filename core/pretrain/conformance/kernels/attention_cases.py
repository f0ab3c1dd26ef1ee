"""Shapes for which attention kernels take different paths: head sizes, tiles, blocks, shared keys."""

from __future__ import annotations

from typing import Any

import torch

from pretrain.conformance.cases import Case
from pretrain.conformance.examples import DTYPES, attention
from pretrain.plugins.requests import Mask


def _shape(length: int, heads: int, groups: int, size: int, block: int) -> dict[str, Any]:
    return {"length": length, "heads": heads, "groups": groups, "size": size, "block": block}


SHAPES = [
    _shape(1, 4, 4, 16, 16),
    _shape(7, 1, 1, 16, 16),
    _shape(33, 4, 2, 16, 16),
    _shape(33, 4, 1, 16, 16),
    _shape(150, 2, 2, 16, 16),
    _shape(65, 2, 2, 64, 32),
    _shape(130, 2, 1, 80, 64),
    _shape(96, 4, 2, 96, 32),
    _shape(160, 2, 2, 128, 32),
    _shape(64, 2, 2, 192, 32),
    _shape(64, 2, 2, 256, 64),
]
"""Odd lengths and heads; heads of 64, 80, 96, 128, 192 and 256; blocks that are multiples of 32, and others."""

ANY = [_shape(33, 4, 2, 16, 16), _shape(96, 4, 2, 64, 32), _shape(96, 2, 2, 128, 32)]
"""Alternatives, of which a kernel must take one, for tests that do not depend on the shape."""


OWN_KEYS = [_shape(33, 4, 4, 16, 16), _shape(96, 2, 2, 64, 32), _shape(96, 2, 2, 128, 32)]
"""The same, every head with a key of its own."""


def each(mask: Mask = Mask.CAUSAL, shapes: list[dict[str, Any]] = ANY, **asked: Any) -> list[Case]:
    """Return a case for every dtype, of the first shape that the kernel takes."""
    return [Case(tuple(attention(dtype, mask, **shape, **asked) for shape in shapes)) for dtype in DTYPES]


def long(mask: Mask = Mask.CAUSAL, size: int = 128, length: int = 2112, **asked: Any) -> Case:
    """Return a case over 2048 tokens, where kernels change their algorithm: one head, a recipe's block size."""
    shape: dict[str, Any] = {"length": length, "heads": 1, "size": size, "batch": 1, "block": 512}
    dtypes = (torch.bfloat16, torch.float16, torch.float32)
    return Case(tuple(attention(dtype, mask, **shape, **asked) for dtype in dtypes), is_costly=True)
