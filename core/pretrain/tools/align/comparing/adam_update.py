"""Recomputes Adam's update in float64 from the recorded weights and moments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, assert_never

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from pretrain.recipe.sections.optimizer import OptimizerName, OptimizerSection
    from pretrain.tools.align.comparing.parameters import Parameters

TOLERANCE = 1e-4
"""Largest error of an update or of a second moment, as a part of its largest entry: fp32 moments and weights. A weight
is rounded to 2^-24 of itself, a thousand times its update."""
ROUNDING = 2.0**-23  # of a weight, as a part of it
_DECAY = 1e-2
"""Largest error of the weight decay, as a part of it: so small a part of an update that `TOLERANCE` hides it."""
_ROUNDINGS = 3 * 2.0**-24
"""Error of a weight in fp32, as a part of it: of 1 - rate * decay, of the product with it, and of the sum with the
update. Equal weights round alike, so that it does not average out."""
_ARITHMETIC = 8 * 2.0**-24  # error of Adam's arithmetic in fp32, as a part of a number


def uncomparable_state(section: OptimizerSection) -> str:
    """Return why updates cannot be computed again from the state, and what to do; "" where they can."""
    if section.decoupled_lr is not None:
        return (
            "optimizer.decoupled_lr cannot be compared: updates are computed again with one learning rate.\n"
            "Compare without: --set optimizer.decoupled_lr=null --set schedule.decoupled_min_lr=null."
        )
    if "bf16" in (section.exp_avg_dtype, section.exp_avg_sq_dtype):
        return (
            "a state in bf16 cannot be compared: gradients are worked out of it, and its rounding can be 4 % of them.\n"
            "Compare in fp32: --set optimizer.exp_avg_dtype=fp32 --set optimizer.exp_avg_sq_dtype=fp32."
        )
    return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedAdam:
    """Adam or AdamW with the settings of a recipe, and of one step."""

    optimizer: Mapping[str, Any]
    learning_rate: float
    step: int  # from 1
    taken: int  # updates up to this step's, which is one of them: fewer than steps where some were skipped

    def gradient(self, parameters: Parameters, name: str) -> Tensor:
        """Return the gradient that Adam was given, clipped, from its first moment; fp64."""
        beta = self.optimizer["adam_beta1"]
        after, before = (parameters.moment("exp_avg", name, step) for step in (self.step, self.step - 1))
        given: Tensor = (after - beta * before) / (1 - beta)
        if self.is_decay_in_gradient:
            given = given - self.decay(given) * parameters.weight(name, self.step - 1)
        return given

    def divisor(self, parameters: Parameters, name: str) -> Tensor:
        """Return what the mean gradient is divided by."""
        square = parameters.moment("exp_avg_sq", name, self.step)
        root: Tensor = (square / (1 - self.optimizer["adam_beta2"] ** self.taken)).sqrt()
        return root + float(self.optimizer["adam_eps"])

    def errors(self, parameters: Parameters, name: str) -> dict[str, tuple[float, float]]:
        """Return the errors of second moment, update (in the largest entry) and decay; each with the explained one."""
        beta1, beta2 = self.optimizer["adam_beta1"], self.optimizer["adam_beta2"]
        weight = parameters.weight(name, self.step - 1)
        mean, square = (parameters.moment(which, name, self.step) for which in ("exp_avg", "exp_avg_sq"))
        given = (mean - beta1 * parameters.moment("exp_avg", name, self.step - 1)) / (1 - beta1)
        expected = beta2 * parameters.moment("exp_avg_sq", name, self.step - 1) + (1 - beta2) * given.square()
        update = -self.learning_rate * (mean / (1 - beta1**self.taken) / self.divisor(parameters, name))
        if not self.is_decay_in_gradient:
            update = update - self.learning_rate * self.decay(weight) * weight
        made = parameters.weight(name, self.step) - weight
        rounding = ROUNDING * float(weight.abs().max())
        return {
            "second moment": (_error(square, expected, 0.0), TOLERANCE),
            "update": (_error(made, update, rounding), TOLERANCE),
            "weight decay": self._decay_error(made - update, weight, update),
        }

    @property
    def is_decay_in_gradient(self) -> bool:
        """True if the weight decay is added to the gradient, not to the update."""
        name: OptimizerName = self.optimizer["name"]
        match name:
            case "adam":
                return True
            case "adamw":
                return False
            case "muon":
                raise ValueError(name)  # refused by `pretrain.tools.align.run`
            case _:
                assert_never(name)

    def decay(self, weight: Tensor) -> float:
        """Return the weight decay, which biases and norms do not have."""
        return float(self.optimizer["weight_decay"]) if weight.dim() > 1 else 0.0

    def _decay_error(self, error: Tensor, weight: Tensor, update: Tensor) -> tuple[float, float]:
        """Return the error of the decay, which is that of the update along the weight, and what rounding explains."""
        size, rate, decay = float(weight.square().sum()), self.learning_rate, self.decay(weight)
        if not size or not rate or not decay or self.is_decay_in_gradient:
            return 0.0, 0.0
        explained = _DECAY * decay + (_ROUNDINGS + _ARITHMETIC * float(update.norm()) / size**0.5) / rate
        return abs(float((error * weight).sum())) / size / rate, explained


def _error(actual: Tensor, expected: Tensor, rounding: float) -> float:
    """Return the largest error as a part of the largest entry; what rounding explains is left out."""
    if not bool(actual.isfinite().all()):
        return float("inf")
    largest = float(expected.abs().max())
    error = max(0.0, float((actual - expected).abs().max()) - rounding)
    return error / largest if largest else error
