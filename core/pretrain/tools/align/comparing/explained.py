"""Differences that the dtype explains, as docs/align.md derives and measures them."""

from __future__ import annotations

import math
from dataclasses import dataclass

UNIT = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
"""Unit roundoff of each dtype: half the distance of 1 to the next number."""

CONSTANT = {"fp32": 64.0, "fp16": 2.5, "bf16": 2.5}
"""Factor of `UNIT`: twice the error of correct 16-bit kernels, ten times that of fp32 ones (docs/align.md).

Sums of fp32 kernels are in fp32 too, in other orders; those of 16-bit kernels are in fp32, and only their results are
rounded."""

ROWS = 4.0
"""Factor for the worst of many rows."""

DRIFT = 6.0
"""Factor of the relative difference of the weights before a step, four times what was measured."""

SCALARS = 16.0
"""Part of the whole bound that a loss or the gradient norm may differ by: it is a mean over many numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """Differences that the dtype of two sides explains.

    A step of L layers has a chain of 2 (L + 1) places: forward 0 to L + 1, then backward. Rounding errors of a place
    are independent of those before it, so that they add up as the square root of their number.

    Attributes:
        dtype: the less exact one of both sides.
        layers: L.
        drift: relative difference of the weights before the step; 0 in the first.
        row_drift: the largest one of a weight's row or column: what a neuron receives or passes on.
    """

    dtype: str
    layers: int
    drift: float = 0.0
    row_drift: float = 0.0

    def at(self, position: int, *, is_backward: bool) -> float:
        """Return the explained difference of an activation at a position of the model, or of its gradient."""
        depth = 2 * (self.layers + 1) - position if is_backward else position
        return CONSTANT[self.dtype] * UNIT[self.dtype] * math.sqrt(1 + depth) + DRIFT * self.drift

    def of_row(self, position: int, *, is_backward: bool) -> float:
        """Return the explained difference of the worst row."""
        return ROWS * self.at(position, is_backward=is_backward)

    @property
    def of_gradient(self) -> float:
        """The explained difference of a parameter's gradient, which sums over all positions of the chain's end."""
        return self.at(0, is_backward=True)

    @property
    def of_gradient_row(self) -> float:
        """The explained difference of the worst row of a parameter's gradient."""
        still = self.of_gradient - DRIFT * self.drift
        return ROWS * still + DRIFT * max(ROWS * self.drift, self.row_drift)

    @property
    def of_norm(self) -> float:
        """The explained relative difference of the gradient norm."""
        return max(self.of_gradient / SCALARS, 8 * UNIT["fp32"])

    @property
    def of_loss(self) -> float:
        """The explained relative difference of the loss."""
        return max(self.at(self.layers + 1, is_backward=False) / SCALARS, 8 * UNIT["fp32"])


def coarser(first: str, second: str) -> str:
    """Return the less exact dtype."""
    return max(first, second, key=UNIT.__getitem__)
