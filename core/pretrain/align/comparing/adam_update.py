"""Adam in float64: what an update should have been, by the moments and weights that were recorded around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from pretrain.align.reading.recorded_parameters import Parameters

TOLERANCE = 1e-4
"""Largest error of an update or of a second moment, as a part of its largest entry: fp32 moments and weights. A weight
is rounded to 2^-24 of itself, a thousand times its update."""

_ROUNDING = 2.0**-23
"""Of a weight, as a part of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Adam:
    """Adam or AdamW with the settings of a recipe, and of one step.

    Attributes:
        optimizer: the recipe's section.
        learning_rate: of the step.
        step: from 1.
    """

    optimizer: Mapping[str, Any]
    learning_rate: float
    step: int

    def gradient(self, parameters: Parameters, name: str) -> Tensor:
        """Return the gradient that Adam was given, clipped, from its first moment; fp64."""
        beta = self.optimizer["adam_beta1"]
        after, before = (parameters.moment("exp_avg", name, step) for step in (self.step, self.step - 1))
        given: Tensor = (after - beta * before) / (1 - beta)
        if self.optimizer["name"] == "adam":
            given = given - self._decay(given) * parameters.weight(name, self.step - 1)
        return given

    def errors(self, parameters: Parameters, name: str) -> dict[str, float]:
        """Return the errors of the second moment and of the update, each as a part of its largest entry."""
        beta1, beta2 = self.optimizer["adam_beta1"], self.optimizer["adam_beta2"]
        weight = parameters.weight(name, self.step - 1)
        decay = self._decay(weight)
        mean, square = (parameters.moment(which, name, self.step) for which in ("exp_avg", "exp_avg_sq"))
        given = (mean - beta1 * parameters.moment("exp_avg", name, self.step - 1)) / (1 - beta1)
        expected = beta2 * parameters.moment("exp_avg_sq", name, self.step - 1) + (1 - beta2) * given.square()
        divisor = (square / (1 - beta2**self.step)).sqrt() + self.optimizer["adam_eps"]
        update = -self.learning_rate * (mean / (1 - beta1**self.step) / divisor)
        if self.optimizer["name"] == "adamw":
            update = update - self.learning_rate * decay * weight
        made = parameters.weight(name, self.step) - weight
        rounding = _ROUNDING * float(weight.abs().max())
        return {
            "second moment": _error(square, expected, 0.0),
            "update": _error(made, update, rounding),
        }

    def _decay(self, weight: Tensor) -> float:
        """Return the weight decay, which biases and norms do not have."""
        return float(self.optimizer["weight_decay"]) if weight.dim() > 1 else 0.0


def _error(actual: Tensor, expected: Tensor, rounding: float) -> float:
    """Return the largest error as a part of the largest entry; what rounding explains is left out."""
    if not bool(actual.isfinite().all()):
        return float("inf")
    largest = float(expected.abs().max())
    error = max(0.0, float((actual - expected).abs().max()) - rounding)
    return error / largest if largest else error


def relative(first: Tensor, second: Tensor, kept: Tensor) -> float:
    """Return the norm of the difference as a part of the larger norm, over the kept entries; 0 without any."""
    if first.shape != second.shape:
        return float("inf")
    a, b = first[kept], second[kept]
    largest = torch.maximum(a.norm(), b.norm())
    return float((a - b).norm() / largest) if float(largest) else 0.0
