"""Distance of two tensors, and how much of it the dtype explains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

Copies = list["Tensor"]  # A tensor [samples, positions, ...], once for each copy that ranks hold


@dataclass(frozen=True, slots=True)
class Distance:
    """Distance of two tensors; infinite where their shapes differ or a number is not finite."""

    whole: float  # Euclidean norm of the difference, as a part of the larger tensor's
    # The largest of any token, as a part of its norm or, if that is larger, of the median token's: one wrong token
    # among many is seen, also where a few are so much larger that they are all of the whole norm.
    row: float

    @classmethod
    def between(cls, first: Tensor, second: Tensor) -> Distance:
        """Measure two tensors [samples, positions, ...]."""
        return cls.between_parts([[first]], [[second]])

    @classmethod
    def between_parts(cls, first: Iterable[Copies], second: Iterable[Copies]) -> Distance:
        """Measure tensors that are given some samples at a time; return the largest distance of any copy."""
        norms: dict[int, list[Tensor]] = {}
        for ours, theirs in _side_by_side(iter(first), iter(second)):
            pairs = [(ours[0], each) for each in theirs] + [(each, theirs[0]) for each in ours[1:]]
            if any(a.shape != b.shape for a, b in pairs):
                return cls(math.inf, math.inf)
            for number, (a, b) in enumerate(pairs):
                norms.setdefault(number, []).append(_row_norms(a, b))
        found = [cls._of_rows(torch.cat(each, dim=1)) for each in norms.values()]
        return cls(max((each.whole for each in found), default=0.0), max((each.row for each in found), default=0.0))

    @classmethod
    def _of_rows(cls, norms: Tensor) -> Distance:
        """Return the distance by the norms of each row: of one tensor, of the other, and of the difference."""
        if not bool(norms.isfinite().all()):
            return cls(math.inf, math.inf)
        rows, differences = torch.maximum(norms[0], norms[1]), norms[2]
        if not bool(rows.any()):
            return cls(0.0, 0.0)
        whole = differences.norm() / torch.maximum(norms[0].norm(), norms[1].norm())
        return cls(float(whole), float((differences / rows.clamp(min=rows[rows > 0].median())).max()))


def _side_by_side(first: Iterator[Copies], second: Iterator[Copies]) -> Iterator[tuple[Copies, Copies]]:
    """Yield the same samples of both sides, whose parts may have other numbers of them."""
    ours, theirs = next(first, None), next(second, None)
    while ours is not None and theirs is not None:
        count = min(len(ours[0]), len(theirs[0]))
        yield [each[:count] for each in ours], [each[:count] for each in theirs]
        ours = [each[count:] for each in ours] if len(ours[0]) > count else next(first, None)
        theirs = [each[count:] for each in theirs] if len(theirs[0]) > count else next(second, None)
    if ours is not None or theirs is not None:
        yield ours or [torch.empty(0)], theirs or [torch.empty(0)]  # one side has more samples: another shape


def _row_norms(first: Tensor, second: Tensor) -> Tensor:
    """Return the norms of each row [3, rows]: of both tensors and of their difference."""
    a, b = (x.double().flatten(2) if x.dim() > 2 else x.double()[..., None] for x in (first, second))
    return torch.stack([x.norm(dim=-1).flatten() for x in (a, b, a - b)])


def vectors(first: Tensor, second: Tensor, floor: float = 0.0) -> float:
    """Return the norm of the difference as a part of the larger norm, or of `floor` if that is larger."""
    if first.shape != second.shape or not bool((first.isfinite() & second.isfinite()).all()):
        return math.inf
    largest = max(float(first.norm()), float(second.norm()), floor)
    return float((first - second).norm()) / largest if largest else 0.0


def worst_row(first: Tensor, second: Tensor, floor: float = 0.0) -> float:
    """Return the largest difference of a row or vector's entry, in its norm; in the mean one's or `floor` if larger."""
    if first.shape != second.shape or not bool((first.isfinite() & second.isfinite()).all()):
        return math.inf
    if not first.numel():
        return 0.0
    a, b = (x.flatten(1) if x.dim() > 1 else x.reshape(-1, 1) for x in (first, second))
    norms = torch.maximum(a.norm(dim=1), b.norm(dim=1))
    least = max(float(norms.square().mean().sqrt()), floor)
    return float(((a - b).norm(dim=1) / norms.clamp(min=least)).max()) if least else 0.0


UNIT = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
"""Unit roundoff of each dtype: half the distance of 1 to the next number."""
CONSTANT = {"fp32": 64.0, "fp16": 2.5, "bf16": 2.5}
"""Factor of `UNIT`: twice the error of correct 16-bit kernels, whose sums are in fp32 and only results are rounded, and
ten times that of fp32 ones, whose sums in fp32 have other orders (docs/align.md)."""
ROWS = 4.0  # factor for the worst of many rows
FP8_UNIT = {"tensorwise": (2.0**-4, 2.0**-3)} | dict.fromkeys(("rowwise", "block", "mxfp8"), (2.0**-4, 2.0**-4))
"""`precision.fp8` -> unit roundoff of activations and weights, and of gradients (pretrain.reference.quantization)."""
FP8 = 2.0
"""Unit roundoffs of fp8 that two sides may differ by after a linear, at any depth: 0.85 where each side rounds both
operands independently of the other, 1.2 in fp32 with what the layers before pass on (docs/align.md)."""
FP8_ROWS = 3.0  # the same as `ROWS`: up to 4.8 unit roundoffs of fp8 were measured in a row of a gradient
FP8_NORM = 4.0  # part of `FP8` that the gradient norm may differ by: up to 2.8 % was measured, in second steps
DRIFT = 6.0  # factor of the relative difference of the weights before a step, four times what was measured
SCALARS = 16.0  # part of the whole bound that a loss or the gradient norm may differ by: it is a mean over many numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """Differences that the dtype of two sides explains."""

    # A step of L layers has a chain of 2 (L + 1) places: forward 0 to L + 1, then backward. Rounding errors of a place
    # are independent of those before it, so that they add up as the square root of their number.

    dtype: str
    layers: int
    drift: float = 0.0  # relative difference of the weights before the step; 0 in the first
    row_drift: float = 0.0  # the largest one of a weight's row or column: what a neuron receives or passes on
    fp8: str | None = None  # `precision.fp8`, by which operands of linears are rounded

    def at(self, position: int, *, is_backward: bool) -> float:
        """Return the explained difference of an activation at a position of the model, or of its gradient."""
        depth = 2 * (self.layers + 1) - position if is_backward else position
        summed = CONSTANT[self.dtype] * UNIT[self.dtype] * math.sqrt(1 + depth) + DRIFT * self.drift
        return summed + self._of_fp8(position, is_backward=is_backward)

    def of_row(self, position: int, *, is_backward: bool) -> float:
        """Return the explained difference of the worst row."""
        whole, of_fp8 = (each(position, is_backward=is_backward) for each in (self.at, self._of_fp8))
        return ROWS * (whole - of_fp8) + FP8_ROWS * of_fp8

    def _of_fp8(self, position: int, *, is_backward: bool) -> float:
        """Return what operands in fp8 add: nothing before the first linear."""
        if self.fp8 is None or (position == 0 and not is_backward):
            return 0.0
        return FP8 * FP8_UNIT[self.fp8][is_backward]

    @property
    def of_gradient(self) -> float:
        """The explained difference of a parameter's gradient, which sums over all positions of the chain's end."""
        return self.at(0, is_backward=True)

    @property
    def of_gradient_row(self) -> float:
        """The explained difference of the worst row of a parameter's gradient."""
        return self.of_row(0, is_backward=True) + DRIFT * max(0.0, self.row_drift - ROWS * self.drift)

    @property
    def of_norm(self) -> float:
        """The explained relative difference of the gradient norm."""
        of_fp8 = self._of_fp8(0, is_backward=True) / FP8_NORM
        return max(self.of_gradient / SCALARS, 8 * UNIT["fp32"]) + of_fp8

    @property
    def of_loss(self) -> float:
        """The explained relative difference of the loss."""
        return max(self.at(self.layers + 1, is_backward=False) / SCALARS, 8 * UNIT["fp32"])


def coarser(first: str, second: str) -> str:
    """Return the less exact dtype."""
    return max(first, second, key=UNIT.__getitem__)
