"""Attention of one sample or of several with equally many tokens, forward and backward, in fp32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ascend_simulator.kernels import random

if TYPE_CHECKING:
    from torch import Tensor

MASKED = -1e30
"""Value of a masked score. Finite: a fully masked row comes out uniform, as it may on a device."""


@dataclass(frozen=True)
class Settings:
    """Settings of a call that are the same for every sample."""

    scale: float
    keep: float
    seed: int
    offset: int
    empty_rows_are_zero: bool  # inner_precise 2


@dataclass(frozen=True)
class Score:
    """The weights of one sample [b, n, queries, keys], and what they were made of."""

    weights: Tensor
    kept: Tensor | None  # 0 or 1 / keep
    largest: Tensor  # [b, n, queries, 1]
    total: Tensor  # [b, n, queries, 1]

    @property
    def dropped(self) -> Tensor:
        """Return the weights after dropout."""
        return self.weights if self.kept is None else self.weights * self.kept


def shared(x: Tensor, heads: int) -> Tensor:
    """Return keys or values in fp32, repeated for the heads that share them."""
    return x.float().repeat_interleave(heads // x.shape[1], 1)


def score(query: Tensor, key: Tensor, bias: Tensor | None, masked: Tensor | None, settings: Settings) -> Score:
    """Return softmax(scale * query @ key + bias), masked, and which weights dropout keeps."""
    scores = query.float() @ shared(key, query.shape[1]).mT * settings.scale
    if bias is not None:
        scores = scores + bias.float()
    if masked is not None:
        scores = scores.masked_fill(masked, MASKED)
    largest = scores.amax(-1, keepdim=True)
    powers = (scores - largest).exp()
    total = powers.sum(-1, keepdim=True)
    weights = powers / total
    if masked is not None and settings.empty_rows_are_zero:
        weights = weights.masked_fill(masked.all(-1, keepdim=True), 0)
    return Score(weights, _kept(weights.shape, settings), largest, total)


def _kept(shape: tuple[int, ...], settings: Settings) -> Tensor | None:
    if settings.keep == 1:
        return None
    return random.kept(shape, settings.keep, settings.seed, settings.offset).float() / settings.keep


def backward(
    query: Tensor, key: Tensor, value: Tensor, grad: Tensor, found: Score, masked: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of query, key, value and scores, in fp32; shared heads' are summed."""
    heads, groups = query.shape[1], key.shape[1]
    dweights = grad.float() @ shared(value, heads).mT
    if found.kept is not None:
        dweights = dweights * found.kept
    dscores = found.weights * (dweights - (dweights * found.weights).sum(-1, keepdim=True))
    if masked is not None:
        dscores = dscores.masked_fill(masked, 0)
    dvalue = found.dropped.mT @ grad.float()
    dkey = dscores.mT @ query.float() * scale
    dquery = dscores @ shared(key, heads) * scale
    return dquery, _summed(dkey, groups), _summed(dvalue, groups), dscores


def _summed(x: Tensor, groups: int) -> Tensor:
    return x if x.shape[1] == groups else x.unflatten(1, (groups, -1)).sum(2)


def agrees(found: Score, largest: Tensor, total: Tensor) -> bool:
    """Return whether the statistics that the forward pass saved are those of this score."""
    return torch.allclose(found.largest, largest) and torch.allclose(found.total, total)
