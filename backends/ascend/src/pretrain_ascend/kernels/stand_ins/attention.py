"""npu_fusion_attention: forward keeps two statistics of each row; backward sums up its gradients in fp32."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from pretrain.plugins.stand_in import stand_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

WORDS = 8
"""Copies of each statistic: softmax_max and softmax_sum are [b, n, s, 8], or [t, n, 8] in the layout "TND"."""

BITS, MULTIPLE = 8, 128
"""The dropout mask has one bit for each weight, and is a multiple of 128 bits long (dropout_gen_mask_impl)."""


def fusion_attention(
    query: Tensor, key: Tensor, value: Tensor, heads: int, layout: str, *numbers: Tensor, **options: Any
) -> tuple[Tensor, ...]:
    """Return the context of queries [s, b, n * d] (layout "SBH"), [b, n, s, d] ("BNSD") or [t, n, d] ("TND").

    Args:
        query: as the layout says.
        key: the same with g heads.
        value: as `key`.
        heads: n.
        layout: "SBH", "BNSD" or "TND".
        numbers: kept too.
        options: of the operator; `atten_mask` is kept, and `keep_prob` below 1 makes a dropout mask.
    """
    rows, pairs = _sizes(query, key, heads, layout, options)
    weights = heads * pairs if options.get("keep_prob", 1.0) < 1 else 0

    def compute(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Sequence[Tensor | None]]:
        context = torch.empty_like(query)
        largest, total = (query.new_empty(*rows, WORDS, dtype=torch.float32) for _ in range(2))
        _dropout_mask(query, weights)
        return context, (query, key, value, options.get("atten_mask"), largest, total, context, *numbers)

    return (stand_in(compute, partial(_gradients, weights))(query, key, value),)


def _sizes(
    query: Tensor, key: Tensor, heads: int, layout: str, options: Mapping[str, Any]
) -> tuple[tuple[int, ...], int]:
    """Return the shape of a statistic, and the number of pairs of a query and a key of the same sample."""
    if layout == "TND":
        ends = zip(*(pairwise((0, *options[name])) for name in ("actual_seq_qlen", "actual_seq_kvlen")), strict=True)
        return (query.shape[0], heads), sum((q[1] - q[0]) * (k[1] - k[0]) for q, k in ends)
    tokens, samples = {"SBH": (0, 1), "BNSD": (2, 0)}[layout]
    s, b = query.shape[tokens], query.shape[samples]
    return (b, heads, s), b * s * key.shape[tokens]


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
