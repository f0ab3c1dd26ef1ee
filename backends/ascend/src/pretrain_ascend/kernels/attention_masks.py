"""Masks in the shapes that CANN's attention takes, and the treatment of queries that see no key."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from pretrain.reference import masks

if TYPE_CHECKING:
    from torch import Tensor

COMPRESSED = 2048
"""Rows and columns of the one mask that stands for a causal one of any length (sparse_mode 2)."""

KEPT = 32
"""Causal masks of blocks: one for each of a sequence's, in training and in evaluation."""


@functools.cache
def compressed_causal(device: torch.device) -> Tensor:
    """Return bool [2048, 2048], True above the diagonal: 4 MiB, once for each device."""
    return torch.ones(COMPRESSED, COMPRESSED, dtype=torch.bool, device=device).triu_(1)


@functools.lru_cache(maxsize=KEPT)
def causal(queries: int, keys: int, device: torch.device) -> Tensor:
    """Return bool [queries, keys], True where a key is later than the query; made once, not for every layer.

    The tensor is shared: do not write to it.
    """
    return masks.causal(queries, keys, device)


def expanded(mask: Tensor, batch: int, heads: int, queries: int, keys: int) -> Tensor:
    """Return a mask as [b or 1, n or 1, queries, keys]; one for each head has one for each sample too.

    Contiguous: the kernels read it where it lies.
    """
    mask = mask[(None,) * (4 - mask.dim())]
    samples = batch if mask.shape[1] > 1 else mask.shape[0]
    return mask.expand(samples, heads if mask.shape[1] > 1 else 1, queries, keys).contiguous()


def without_empty_rows(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mask with all keys for queries that see none, and bool [..., 1], True for those queries.

    Their context is set to zero afterwards: the result of CANN's kernels for such a row is not documented.
    """
    empty = mask.all(dim=-1, keepdim=True)
    return mask & ~empty, empty
