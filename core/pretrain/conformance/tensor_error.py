"""Error of a tensor against float64, and how much of it each dtype explains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2**-5, torch.float16: 2**-8}
"""The largest error of an entry that is allowed, as a part of the largest entry of the expected tensor.

fp16 and bf16: four units in the last place (2^-7 for bf16, 2^-10 for fp16). A kernel rounds its result, and, if it is
made of two matmuls, the values between them, forward and again backward. Kernel and reference have the same inputs.
fp32: 84 units (2^-23). Kernels sum a few hundred terms in different orders.
fp64: the same, for kernels that support it.

Relative to the largest entry, not to each one: a difference of large terms has their error.
"""

INEXACT = 4
"""Factor over the tolerance, or over the reference kernel's error in the same dtype, up to which a kernel is inexact,
not wrong: some sum in their own dtype, as torch's layer norm on CPUs sums the gradients of its weights."""

WHOLE = {**TOLERANCE, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
"""Least error of a whole tensor that is explained: two roundings to 16 bits, or sums in another order."""

ROWS = 4
"""Factor for the worst of many rows."""

MANY = 128
"""Entries in whose mean error rounding averages out to less than half of `WHOLE`, also in the worst of many slices."""


def largest_error(actual: Tensor | None, expected: Tensor) -> tuple[float, float]:
    """Return the largest error of an entry, and the largest entry expected (fp64, on the CPU).

    The error is infinite for a tensor that is missing, of another shape, or not finite.
    """
    largest = expected.abs().max().item() if expected.numel() else 0.0
    if actual is None or actual.shape != expected.shape or not bool(actual.isfinite().all()):
        return math.inf, largest
    errors = (actual.detach().cpu().double() - expected.double()).abs()
    return errors.max().item() if expected.numel() else 0.0, largest


def relative_error(actual: Tensor | None, expected: Tensor) -> float:
    """Return the largest error of an entry as a part of the largest entry expected."""
    return _share(*largest_error(actual, expected))


def _share(error: float, whole: float) -> float:
    return error / whole if whole else error


def assert_near(actual: Tensor | None, expected: Tensor, dtype: torch.dtype, what: str, *, floor: float = 0.0) -> None:
    """Fail unless every entry is finite and within the tolerance of the dtype of the kernel's inputs.

    `expected` is fp64 on the CPU, `what` its name in the message. The tolerance is relative to the largest entry, or to
    `floor` if that is larger, as entries may be differences of terms of this size.
    """
    assert actual is not None, f"{what} is missing"
    assert actual.shape == expected.shape, f"{what}: shape {list(actual.shape)}, expected {list(expected.shape)}"
    error, largest = largest_error(actual, expected)
    assert math.isfinite(error), f"{what}: {int((~actual.isfinite()).sum())} entries are not finite"
    allowed = TOLERANCE[dtype] * max(largest, floor)
    assert error <= allowed, f"{what}: error {error:.3g}, allowed {allowed:.3g} ({dtype}, largest entry {largest:.3g})"


@dataclass(frozen=True, slots=True)
class TensorError:
    """Error of a tensor; infinite for a missing one, another shape, or an inf or nan."""

    entry: float
    """Largest error of an entry, as a part of the largest entry expected."""
    whole: float
    """Euclidean norm of the error, as a part of that of the tensor expected."""
    row: float = 0.0
    """The same of the worst row (the last dimension), as a part of its norm or, if that is larger, the median row's: a
    few rows may be so much larger that they are all of the tensor's norm. 0 for vectors."""
    scale: float = 0.0
    """Largest factor that a slice is too large or small by: of one head, position, sample or feature. In it rounding
    averages out, so that it tells a mistake from rounding below one unit in the last place."""

    @classmethod
    def of(cls, actual: Tensor | None, expected: Tensor) -> TensorError:
        """Measure a tensor against the expected one."""
        entry = relative_error(actual, expected)
        if actual is None or not math.isfinite(entry):
            return cls(math.inf, math.inf)
        if not expected.numel():
            return cls(0.0, 0.0)
        exact = expected.double()
        error = actual.double() - exact
        whole = _share(error.norm().item(), exact.norm().item())
        return cls(entry=entry, whole=whole, row=_worst_row(error, exact), scale=_worst_scale(error, exact))

    @property
    def is_finite(self) -> bool:
        """True if the error is a number."""
        return math.isfinite(self.entry)

    def is_small(self, dtype: torch.dtype) -> bool:
        """Say whether the error is explained whatever the reference kernel's own error is."""
        whole = WHOLE[dtype]
        is_small = self.entry <= TOLERANCE[dtype] and self.whole <= whole
        return is_small and self.row <= ROWS * whole and self.scale <= whole / 2

    def judged(self, dtype: torch.dtype, made: TensorError | None) -> list[float]:
        """Return an error and its limit: of the whole tensor, or of the first measure that exceeds its limit.

        `made` is the error that the reference kernel makes in this dtype; None if it is not needed.
        """
        usual = made if made is not None and made.is_finite else TensorError(0.0, 0.0)
        whole = WHOLE[dtype]
        judged = [
            [self.whole, max(whole, INEXACT * usual.whole)],
            [self.row, max(ROWS * whole, INEXACT * usual.row)],
            # Where the reference kernel is inexact too, less of its error averages out.
            [self.scale, max(whole / 2, INEXACT * usual.scale, usual.whole)],
            [self.entry, INEXACT * max(TOLERANCE[dtype], usual.entry)],
        ]
        return next(([error, explained] for error, explained in judged if not error <= explained), judged[0])


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
