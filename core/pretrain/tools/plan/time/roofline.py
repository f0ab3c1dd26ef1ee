"""Roofline: an operation takes as long as its matmuls or its memory traffic, whichever takes longer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.plan.costs import Operation
    from pretrain.tools.plan.efficiencies import Efficiencies


@dataclass(frozen=True, slots=True)
class Roofline:
    """Speed of a device at given efficiencies (Williams et al. 2009, doi:10.1145/1498765.1498785).

    Attributes:
        peak_flops: FLOP/s of matmuls in the recipe's dtype, which are taken for those in fp32 too.
        memory_bandwidth: bytes/s.
        efficiencies: shares of both that are reached.
    """

    peak_flops: float
    memory_bandwidth: float
    efficiencies: Efficiencies

    def seconds(self, operations: Mapping[Operation, float]) -> float:
        """Return the time of operations, one after another."""
        return math.fsum(self._of_one(operation) * count for operation, count in operations.items())

    def _of_one(self, operation: Operation) -> float:
        computing = operation.flops / (self.peak_flops * self.efficiencies.matmul)
        moving = operation.moved / (self.memory_bandwidth * self.efficiencies.memory)
        return max(computing, moving)
