"""Distance of two tensors that should be equal."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

ROWS = 2
"""Dimensions of samples and positions, of which each has a row."""


@dataclass(frozen=True, slots=True)
class Distance:
    """Distance of two tensors; infinite where their shapes differ or a number is not finite.

    Attributes:
        whole: Euclidean norm of the difference, as a part of the larger tensor's.
        row: the largest of any row, as a part of the row's norm or, if that is larger, of the mean row's: one wrong
            token among many is seen.
    """

    whole: float
    row: float

    @classmethod
    def between(cls, first: Tensor, second: Tensor) -> Distance:
        """Measure two tensors [samples, positions, ...]."""
        if first.shape != second.shape or not bool((first.isfinite() & second.isfinite()).all()):
            return cls(math.inf, math.inf)
        if not first.numel():
            return cls(0.0, 0.0)
        a, b = (x.double().flatten(ROWS) if x.dim() > ROWS else x.double()[..., None] for x in (first, second))
        rows = torch.maximum(a.norm(dim=-1), b.norm(dim=-1))
        mean = rows.square().mean().sqrt()
        differences = (a - b).norm(dim=-1)
        if not float(mean):
            return cls(0.0, 0.0)
        whole = differences.norm() / torch.maximum(a.norm(), b.norm())
        return cls(float(whole), float((differences / rows.clamp(min=mean)).max()))

    @classmethod
    def between_copies(cls, first: Sequence[Tensor], second: Sequence[Tensor]) -> Distance:
        """Measure tensors of which ranks hold copies; return the largest distance of any copy."""
        pairs = [(first[0], each) for each in second] + [(each, second[0]) for each in first[1:]]
        found = [cls.between(*pair) for pair in pairs]
        return cls(max(each.whole for each in found), max(each.row for each in found))


def vectors(first: Tensor, second: Tensor, floor: float = 0.0) -> float:
    """Return the norm of the difference as a part of the larger norm, or of `floor` if that is larger."""
    if first.shape != second.shape or not bool((first.isfinite() & second.isfinite()).all()):
        return math.inf
    largest = max(float(first.norm()), float(second.norm()), floor)
    return float((first - second).norm()) / largest if largest else 0.0


def worst_row(first: Tensor, second: Tensor, floor: float = 0.0) -> float:
    """Return the largest difference of a row, or of an entry of a vector, as a part of the row's norm.

    Of the mean row's, or of `floor`, if that is larger.
    """
    if first.shape != second.shape or not bool((first.isfinite() & second.isfinite()).all()):
        return math.inf
    if not first.numel():
        return 0.0
    a, b = (x.flatten(1) if x.dim() > 1 else x.reshape(-1, 1) for x in (first, second))
    norms = torch.maximum(a.norm(dim=1), b.norm(dim=1))
    least = max(float(norms.square().mean().sqrt()), floor)
    return float(((a - b).norm(dim=1) / norms.clamp(min=least)).max()) if least else 0.0
