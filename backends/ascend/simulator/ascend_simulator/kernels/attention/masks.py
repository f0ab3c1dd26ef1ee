"""sparse_mode of npu_fusion_attention: the keys hidden from a query, and the check of the mask against the mode.

A device reads a compressed mask of 2048 x 2048 in modes 2 to 4 and derives from pre and next which blocks it skips in
mode 0. Another mask than it expects gives a wrong result and no error. Here it is an error.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from ascend_simulator.kernels.contract import require

if TYPE_CHECKING:
    from torch import Tensor

NAME = "npu_fusion_attention"
DEFAULT, ALL, LEFT_UP_CAUSAL, RIGHT_DOWN_CAUSAL, BAND = range(5)
WHOLE = (DEFAULT, ALL)
COMPRESSED = (LEFT_UP_CAUSAL, RIGHT_DOWN_CAUSAL, BAND)
SIZE = 2048


def masked(
    mode: int, mask: Tensor | None, batch: int, heads: int, queries: int, keys: int, before: int, after: int
) -> Tensor | None:
    """Return bool, broadcastable to [batch, heads, queries, keys], True where a key is not seen; None: all are seen."""
    require(mode in range(5), NAME, f"sparse_mode {mode}; the simulator has 0 to 4")
    if mask is None:
        require(mode == DEFAULT, NAME, f"sparse_mode {mode} without atten_mask; a device would see every key")
        require(
            before >= queries and after >= keys, NAME, "pre_tockens or next_tockens without a mask; they are ignored"
        )
        return None
    require(mask.dtype in {torch.bool, torch.uint8}, NAME, f"atten_mask is {mask.dtype}; only bool, uint8")
    if mode in COMPRESSED:
        _require_compressed(mode, mask)
        meets = mode != BAND or before + after >= 0
        require(meets, NAME, f"pre_tockens {before} and next_tockens {after} of a band, which do not meet")
        return _from_mode(mode, queries, keys, before, after)
    whole = {(batch, heads, queries, keys), (batch, 1, queries, keys), (1, 1, queries, keys), (queries, keys)}
    fits = tuple(mask.shape) in whole
    require(
        fits, NAME, f"atten_mask {tuple(mask.shape)} for {batch} x {heads} x {queries} x {keys}; only {sorted(whole)}"
    )
    if mode == DEFAULT:
        _require_agreement(mask.bool(), before, after)
    return mask.bool()


def _require_compressed(mode: int, mask: Tensor) -> None:
    what = f"sparse_mode {mode} wants torch.triu(torch.ones({SIZE}, {SIZE}, dtype=torch.bool), 1)"
    require(tuple(mask.shape) == (SIZE, SIZE), NAME, f"{what}, got a mask of {tuple(mask.shape)}")
    require(torch.equal(_words(mask.bool()), _compressed()), NAME, f"{what}, got another one of that size")


@functools.cache
def _compressed() -> Tensor:
    return _words(torch.ones(SIZE, SIZE, dtype=torch.bool).triu_(1))


def _words(mask: Tensor) -> Tensor:
    """Return the mask as whole numbers of eight bools each, which torch compares eight times as fast."""
    is_aligned = mask.is_contiguous() and mask.storage_offset() % 8 == 0
    return (mask if is_aligned else mask.clone(memory_format=torch.contiguous_format)).view(torch.int64)


def _from_mode(mode: int, queries: int, keys: int, before: int, after: int) -> Tensor:
    distance = torch.arange(keys) - torch.arange(queries)[:, None]  # of a key from the query of its number
    if mode == LEFT_UP_CAUSAL:
        return distance > 0
    distance = distance - (keys - queries)  # aligned at the last query and the last key
    return distance > 0 if mode == RIGHT_DOWN_CAUSAL else (distance > after) | (distance < -before)


def _require_agreement(mask: Tensor, before: int, after: int) -> None:
    """Require that the mask hides the keys outside of pre and next, which mode 0 skips in any case."""
    queries, keys = mask.shape[-2:]
    skipped = _outside(queries, keys, before, after)
    agrees = bool((mask | ~skipped).all())
    require(agrees, NAME, f"pre_tockens {before} and next_tockens {after} skip keys that atten_mask lets be seen")


def _outside(queries: int, keys: int, before: int, after: int) -> Tensor:
    distance = torch.arange(keys) - torch.arange(queries)[:, None]
    return (distance > after) | (distance < -before)
