"""Queries, keys and values to test with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pretrain.conformance.comparing.comparison import random

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from pretrain.plugins.requests import AttentionRequest


def inputs(request: AttentionRequest) -> dict[str, Tensor]:
    """Return query [s, b, n, d], key and value [s, b, g, d]."""
    heads = {"query": request.heads, "key": request.query_groups, "value": request.query_groups}
    sizes = (request.seq_length, request.micro_batch_size)
    return {
        name: random(*sizes, number, request.head_size, dtype=request.dtype, seed=seed)
        for seed, (name, number) in enumerate(heads.items())
    }


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


def calls(
    kernel: Any, oracle: Any, mask: Tensor | None, device: torch.device
) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """Return both as functions of query, key and value; the kernel's mask is on the device."""
    placed = None if mask is None else mask.to(device)
    return lambda **x: kernel(**x, mask=placed), lambda **x: oracle(**x, mask=mask)
