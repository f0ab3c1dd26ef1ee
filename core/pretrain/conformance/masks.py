"""Masks to test with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pretrain.plugins.requests import Mask

if TYPE_CHECKING:
    from torch import Tensor


def example_mask(kind: Mask, batch: int, queries: int, keys: int) -> Tensor | None:
    """Return a mask tensor of the kind, True = masked; every query sees at least the first key."""
    if kind in (Mask.NONE, Mask.CAUSAL):
        return None
    if kind is Mask.KEY_PADDING:
        lengths = torch.arange(batch) % keys + (keys + 1) // 2
        return (torch.arange(keys) >= lengths.clamp(max=keys)[:, None]).view(batch, 1, 1, keys)
    generator = torch.Generator().manual_seed(queries)
    mask = torch.rand(batch, 1, queries, keys, generator=generator) < 0.4
    mask |= torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries + 1)
    mask[..., 0] = False
    return mask


def documents(batch: int, length: int) -> Tensor:
    """Return a causal mask [b, 1, s, s] of rows that hold several documents, of different lengths in each row."""
    of_token = torch.stack([torch.arange(length) // (5 + 3 * row + length // 4) for row in range(batch)])
    is_other = of_token[:, :, None] != of_token[:, None, :]
    return (is_other | torch.ones(length, length, dtype=torch.bool).triu(1)).unsqueeze(1)


def mask_with_empty_rows(kind: Mask, batch: int, queries: int, keys: int) -> tuple[Tensor, Tensor]:
    """Return a mask tensor under which some queries see no key, and bool [batch, queries], True for those."""
    mask = example_mask(kind, batch, queries, keys)
    if mask is None:
        msg = f"{kind} has no mask tensor"
        raise ValueError(msg)
    empty = torch.zeros(batch, queries, dtype=torch.bool)
    if kind is Mask.KEY_PADDING:
        empty[-1] = True
    else:
        empty[:, ::3] = True
    return mask | empty.view(batch, 1, queries, 1)[:, :, : mask.shape[2]], empty
