"""Error of one tensor of a call against float64, and how much of it the dtype explains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pretrain.conformance.comparison import TOLERANCE

if TYPE_CHECKING:
    from torch import Tensor

INEXACT = 4
"""Factor over the tolerance of an entry, or over the error that the reference kernel makes in this dtype on the same
tensors, up to which an error is explained: kernels sum in another order than the reference, some in their own dtype."""

WHOLE = {**TOLERANCE, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
"""Least error of a whole tensor that is explained: two roundings to 16 bits, or sums in another order."""

ROWS = 4
"""Factor for the worst of many rows."""

MANY = 128
"""Entries in whose mean error rounding averages out to less than half of `WHOLE`, also in the worst of many slices."""


@dataclass(frozen=True, slots=True)
class CallError:
    """Error of a tensor; infinite for a missing one, another shape, or an inf or nan.

    Attributes:
        entry: largest error of an entry, as a part of the largest entry expected.
        whole: Euclidean norm of the error, as a part of that of the tensor expected.
        row: the same of the worst row (the last dimension), as a part of its norm or, if that is larger, the median
            row's: a few rows may be so much larger that they are all of the tensor's norm. 0 for vectors.
        scale: largest factor that a slice is too large or small by: of one head, position, sample or feature. In it
            rounding averages out, so that it tells a mistake from rounding below one unit in the last place.
    """

    entry: float
    whole: float
    row: float = 0.0
    scale: float = 0.0

    @classmethod
    def of(cls, actual: Tensor | None, expected: Tensor) -> CallError:
        """Measure a tensor against the expected one."""
        if actual is None or actual.shape != expected.shape or not bool(actual.isfinite().all()):
            return cls(math.inf, math.inf)
        if not expected.numel():
            return cls(0.0, 0.0)
        exact = expected.double()
        error = actual.double() - exact
        return cls(
            entry=_part(error.abs().max().item(), exact.abs().max().item()),
            whole=_part(error.norm().item(), exact.norm().item()),
            row=_worst_row(error, exact),
            scale=_worst_scale(error, exact),
        )

    @property
    def is_finite(self) -> bool:
        """True if the error is a number."""
        return math.isfinite(self.entry)

    def is_small(self, dtype: torch.dtype) -> bool:
        """Say whether no more need be known to explain the error."""
        whole = WHOLE[dtype]
        is_small = self.entry <= TOLERANCE[dtype] and self.whole <= whole
        return is_small and self.row <= ROWS * whole and self.scale <= whole / 2

    def judged(self, dtype: torch.dtype, made: CallError | None) -> list[float]:
        """Return the error and what is explained of it: of the whole tensor, or of a part if only that is too large.

        Args:
            dtype: of the kernel's inputs.
            made: error that the reference kernel makes in this dtype; None if it is not needed.
        """
        usual = made if made is not None and made.is_finite else CallError(0.0, 0.0)
        whole = WHOLE[dtype]
        judged = [
            [self.whole, max(whole, INEXACT * usual.whole)],
            [self.row, max(ROWS * whole, INEXACT * usual.row)],
            # Where the reference kernel is inexact too, less of its error averages out.
            [self.scale, max(whole / 2, INEXACT * usual.scale, usual.whole)],
            [self.entry, INEXACT * max(TOLERANCE[dtype], usual.entry)],
        ]
        return next(([error, explained] for error, explained in judged if not error <= explained), judged[0])


def _part(error: float, whole: float) -> float:
    return error / whole if whole else error


def _worst_row(error: Tensor, exact: Tensor) -> float:
    if exact.dim() < 2:
        return 0.0
    norms = exact.norm(dim=-1)
    return float((error.norm(dim=-1) / norms.clamp(min=_median(norms))).max()) if bool(norms.any()) else 0.0


def _worst_scale(error: Tensor, exact: Tensor) -> float:
    """Return the largest <error, exact> / <exact, exact> of a slice along any dimension, less in slices of few entries.

    Rounding of N equal entries leaves 1 / sqrt(N) of it; where they are not equal, N is <e, e>^2 / <e^2, e^2>.
    """
    if exact.dim() < 2 or not bool(exact.any()):
        return 0.0
    squares = exact.square()
    terms = error * exact, squares, squares.square()
    worst = 0.0
    for dim in range(exact.dim()):
        product, square, fourth = (x.sum([each for each in range(x.dim()) if each != dim]) for x in terms)
        size = square.clamp(min=_median(square))
        few = (MANY * fourth).sqrt() / size
        worst = max(worst, float((product.abs() / size / few.clamp(min=1)).max()))
    return worst


def _median(sizes: Tensor) -> Tensor:
    """Return the median of those that are not zero."""
    return sizes[sizes > 0].median()
