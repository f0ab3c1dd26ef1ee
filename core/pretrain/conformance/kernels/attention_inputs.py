"""Shapes at which attention kernels take different paths, and queries, keys and values for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pretrain.conformance.cases import Case
from pretrain.conformance.example_calls import example_call
from pretrain.conformance.examples import DTYPES, attention
from pretrain.plugins.requests import Mask

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import AttentionRequest


def inputs(request: AttentionRequest) -> dict[str, Tensor]:
    """Return query [s, b, n, d], key and value [keys, b, g, d]."""
    return example_call(request, request.seq_length).inputs


def one_projection(separate: dict[str, Tensor]) -> Tensor:
    """Return [s, b, g, (n / g + 2) d]: of every group the queries, then its key and its value."""
    length, batch, groups, size = separate["key"].shape
    query = separate["query"].reshape(length, batch, groups, -1, size)
    whole = torch.cat((query, separate["key"].unsqueeze(3), separate["value"].unsqueeze(3)), dim=3)
    return whole.flatten(3)


def parts(projection: Tensor, request: AttentionRequest) -> dict[str, Tensor]:
    """Return query, key and value as views where they can be: the queries of shared keys are copied by the model too.

    megatron-core 0.16.1, SelfAttention.get_query_key_value_tensors.
    """
    shared, size = request.heads // request.query_groups, request.head_size
    query, key, value = torch.split(projection, [shared * size, size, size], dim=3)
    return {"query": query.reshape(*query.shape[:2], -1, size), "key": key, "value": value}


def outside(request: AttentionRequest) -> Tensor:
    """Return bool [s, s], True where a query does not see a key under its causal mask, or its window."""
    before = torch.arange(request.seq_length)[:, None] - torch.arange(request.seq_length)  # the query
    is_after = before < 0
    return is_after if request.window is None else is_after | (before >= request.window)


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

WINDOWS = [
    *(_shape(33, 4, 2, 16, 16) | {"window": window} for window in (1, 16, 32)),
    _shape(150, 2, 2, 64, 32) | {"window": 47},
    _shape(160, 2, 2, 128, 32) | {"window": 33},
]
"""Windows of one key, and of all but one; at the edges of blocks, and within them."""

PIECES = [
    _shape(16, 4, 2, 16, 16) | {"keys": 64},
    _shape(33, 2, 1, 16, 16) | {"keys": 150},
    _shape(64, 2, 2, 64, 32) | {"keys": 256},
    _shape(32, 2, 2, 128, 32) | {"keys": 128},
]
"""Fewer queries than keys: a piece of a sequence, and what is before it."""

WINDOWED_PIECES = [_shape(16, 4, 2, 16, 16) | {"keys": 64, "window": 20}]

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
