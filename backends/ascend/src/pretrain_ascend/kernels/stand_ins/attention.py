"""npu_fusion_attention: forward keeps two statistics of each row; backward sums up its gradients in fp32."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from pretrain.plugins.stand_in import stand_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

WORDS = 8
"""Copies of each statistic: softmax_max and softmax_sum are [b, n, s, 8]."""

BITS, MULTIPLE = 8, 128
"""The dropout mask has one bit for each weight, and is a multiple of 128 bits long (dropout_gen_mask_impl)."""


def fusion_attention(
    query: Tensor, key: Tensor, value: Tensor, heads: int, layout: str, *numbers: Tensor, **options: Any
) -> tuple[Tensor, ...]:
    """Return the context of queries [s, b, n * d] (layout "SBH") or [b, n, s, d] ("BNSD"), the first output.

    Args:
        query: as the layout says.
        key: the same with g heads.
        value: as `key`.
        heads: n.
        layout: "SBH" or "BNSD".
        numbers: kept too.
        options: of the operator; `atten_mask` is kept, and `keep_prob` below 1 makes a dropout mask.
    """
    s, b = (query.shape[0], query.shape[1]) if layout == "SBH" else (query.shape[2], query.shape[0])
    keys = key.shape[0] if layout == "SBH" else key.shape[2]
    weights = b * heads * s * keys if options.get("keep_prob", 1.0) < 1 else 0

    def compute(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Sequence[Tensor | None]]:
        context = torch.empty_like(query)
        largest, total = (query.new_empty(b, heads, s, WORDS, dtype=torch.float32) for _ in range(2))
        _dropout_mask(query, weights)
        return context, (query, key, value, options.get("atten_mask"), largest, total, context, *numbers)

    return (stand_in(compute, partial(_gradients, weights))(query, key, value),)


def _gradients(
    weights: int, kept: Sequence[Tensor], _grad: Tensor, empty: Sequence[Tensor | None]
) -> Sequence[Tensor | None]:
    """Return the gradients; those of query, key and value are fp32 in the workspace before they are rounded.

    The workspace is that of flash_attention_score_grad_tiling_s1s2_bn2gs1s2.cpp (CANN's ops-transformer), for A2 and
    A3, without the buffers of each core.
    """
    mask = _dropout_mask(kept[0], weights)  # the same mask again: the seed is kept, not the mask
    gradients = list(empty)
    sums = [torch.empty_like(x, dtype=torch.float32) for x in kept[:3]]
    del mask, sums
    return gradients


def _dropout_mask(like: Tensor, weights: int) -> Tensor:
    return like.new_empty(-(-weights // MULTIPLE) * (MULTIPLE // BITS), dtype=torch.uint8)
