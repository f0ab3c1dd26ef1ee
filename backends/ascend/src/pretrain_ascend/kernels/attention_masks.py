"""Masks in the shapes that CANN's attention takes, and the treatment of queries that see no key."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from pretrain.reference import softmax

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

COMPRESSED = 2048
"""Rows and columns of the one mask that stands for a causal one of any length (sparse_mode 2 to 4)."""

KEPT = 32
"""Causal masks of blocks: one for each of a sequence's, in training and in evaluation."""


def compressed_causal(query: Tensor) -> Tensor:
    """Return bool [2048, 2048], True above the diagonal: 4 MiB, once for each device, or mode of fake tensors."""
    return _compressed_causal(query.device, getattr(query, "fake_mode", None))


@functools.lru_cache(maxsize=KEPT)
def _compressed_causal(device: torch.device, fake_mode: object) -> Tensor:  # noqa: ARG001  of the cache's key
    return torch.ones(COMPRESSED, COMPRESSED, dtype=torch.bool, device=device).triu_(1)


def kept_masks() -> Callable[[int, int, torch.device, int | None], Tensor]:
    """Return a function for bool [queries, keys], True where a query sees no key (`causal`), that keeps its results.

    They are made once, not for every layer, and shared: do not write to them.
    """
    return functools.lru_cache(maxsize=KEPT)(softmax.causal)


causal = kept_masks()
"""The masks of this process."""


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
