"""Softmax of a strip of the triangle, in place of `triton.triangle_softmax`: the triangle itself is plain torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


class DropoutRate:
    """Rate of dropout, of which the triangle asks for a seed."""

    def __init__(self, probability: float) -> None:
        self.probability = probability

    @staticmethod
    def seed(device: torch.device) -> Tensor:
        """Return a seed without a value."""
        return torch.empty((), dtype=torch.int64, device=device)


def softmax_(
    scores: Tensor, queries: int, scale: float, dropout: DropoutRate | None = None, seed: Tensor | None = None
) -> Tensor:
    """Return what the kernel returns: the scores, or with dropout a tensor beside them."""
    del queries, scale, seed
    return scores if dropout is None else torch.empty_like(scores)


def softmax_backward_(grad: Tensor, weights: Tensor, queries: int, dropout: DropoutRate | None = None) -> Tensor:
    """Return what the kernel returns: the weights, or with dropout a tensor beside them."""
    del grad, queries
    return weights if dropout is None else torch.empty_like(weights)
