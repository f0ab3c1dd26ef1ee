"""Error of one tensor of a call against float64, and how much of it the dtype explains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pretrain.testing.comparing.tolerance import TOLERANCE

if TYPE_CHECKING:
    from torch import Tensor

INEXACT = 4
"""Factor over the tolerance of an entry, or over the error that the reference kernel makes in this dtype on the same
tensors, up to which an error is explained: kernels sum in another order than the reference, some in their own dtype."""

WHOLE = {**TOLERANCE, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
"""Least error of a whole tensor that is explained: two roundings to 16 bits, or sums in another order."""


@dataclass(frozen=True, slots=True)
class CallError:
    """Error of a tensor; infinite for a missing one, another shape, or an inf or nan.

    Attributes:
        entry: largest error of an entry, as a part of the largest entry expected.
        whole: Euclidean norm of the error, as a part of that of the tensor expected.
    """

    entry: float
    whole: float

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
            _part(error.abs().max().item(), exact.abs().max().item()), _part(error.norm().item(), exact.norm().item())
        )

    def is_small(self, dtype: torch.dtype) -> bool:
        """Say whether no more need be known to explain the error."""
        return self.entry <= TOLERANCE[dtype] and self.whole <= WHOLE[dtype]

    def judged(self, dtype: torch.dtype, made: CallError | None) -> list[float]:
        """Return the error and what is explained of it: of the whole tensor, or of an entry if only that is too large.

        Args:
            dtype: of the kernel's inputs.
            made: error that the reference kernel makes in this dtype; None if it is not needed.
        """
        entry, whole = TOLERANCE[dtype], WHOLE[dtype]
        if made is not None and math.isfinite(made.entry):
            entry, whole = max(entry, made.entry), max(whole, INEXACT * made.whole)
        if self.whole <= whole and not self.entry <= INEXACT * entry:
            return [self.entry, INEXACT * entry]
        return [self.whole, whole]


def _part(error: float, whole: float) -> float:
    return error / whole if whole else error
