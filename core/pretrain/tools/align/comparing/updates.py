"""Compares the parameters' updates.

Adam divides the mean m of the gradients by the root r of their mean square. The explained difference e of an entry's
gradient moves both by e at the most: a mean or a norm changes by at most e when its inputs do. So an update of the
learning rate l, u = l m / (r + eps), moves by (l + |u|) e / (r + eps). What a wrong side makes may not explain itself:
|u| counts as l at the most.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pretrain.tools.align.comparing.adam_update import ROUNDING, TOLERANCE
from pretrain.tools.align.comparing.outcome import UPDATE, Compared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from pretrain.tools.align.comparing.adam_update import RecordedAdam
    from pretrain.tools.align.comparing.distance import Explained
    from pretrain.tools.align.comparing.parameters import Parameters
    from pretrain.tools.align.recording.folder import ModulePlace


_WELL_CONDITIONED = 0.5
"""Entries are compared when gradient noise moves them by less than this share of the learning rate: Adam makes the same
step of any gradient, and an entry that is all noise has any sign."""

_RATES = 1e-6
"""Difference of the learning rates that is explained: that of a number in fp32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gradients:
    """Gradients of a parameter in both sides, in a step.

    Attributes:
        both: without clipping.
        small: root mean square of entries that are compared to at least.
        factor: the smaller one of those that undo the clipping.
    """

    both: Sequence[Tensor]
    small: float
    factor: float

    def errors(self, explained: Explained) -> Tensor:
        """Return the explained difference of the clipped gradient's entries, [rows, 1, ...]."""
        squares = torch.maximum(*(x.square() for x in self.both))
        rows = squares.mean(tuple(range(1, squares.dim())), keepdim=True) if squares.dim() > 1 else squares
        least = max(float(squares.mean().sqrt()), self.small)
        return explained.of_gradient_row * rows.sqrt().clamp(min=least) / self.factor


class Updates:
    """Updates of the parameters of both sides, step by step."""

    def __init__(self, states: Sequence[Parameters]) -> None:
        """Compare nothing yet."""
        self._states = states
        self._errors: dict[str, Tensor] = {}
        self._left_out: dict[int, list[str]] = defaultdict(list)

    def compare(
        self,
        name: str,
        place: ModulePlace,
        number: int,
        adams: Sequence[RecordedAdam],
        gradients: Gradients,
        explained: Explained,
    ) -> Compared | None:
        """Return the comparison of a parameter's update; None if all of its gradient is rounding error.

        Args:
            name: of the parameter.
            place: of its module.
            number: of the parameter in the order of both sides.
            adams: of both sides in this step.
            gradients: of the parameter.
            explained: what the dtype explains in this step.
        """
        errors = gradients.errors(explained)
        self._errors[name] = errors = torch.maximum(errors, self._errors.get(name, errors))
        step = adams[0].step
        made = [state.weight(name, step) - state.weight(name, step - 1) for state in self._states]
        moved, unmoved = self._explained(name, adams, made, errors, explained.of_norm)
        kept = moved < _WELL_CONDITIONED * _rate(adams)
        first, second = (each[kept] for each in made)
        if not first.numel():
            self._left_out[step].append(name)
            return None
        largest = float(torch.maximum(first.norm(), second.norm())) or 1.0
        return Compared(
            order=(step, UPDATE, place.position, number),
            place=place,
            operation="optimizer",
            what=f"update of {name}",
            difference=float((first - second).norm()) / largest,
            explained=float((moved + unmoved)[kept].norm()) / largest + TOLERANCE,
            entries=(first.numel(), kept.numel()),
        )

    @property
    def not_compared(self) -> list[str]:
        """Updates that were not compared in the steps so far, in words; a line for each step that has any."""
        return [
            f"the update of {names[0]}{f' and {len(names) - 1} more' * (len(names) > 1)} in step {step}: "
            "all of the gradient is rounding error"
            for step, names in self._left_out.items()
        ]

    def _explained(
        self, name: str, adams: Sequence[RecordedAdam], made: Sequence[Tensor], errors: Tensor, of_norm: float
    ) -> tuple[Tensor, Tensor]:
        """Return the explained difference of each entry's update: by its gradient, and by decay and rounding."""
        before = [state.weight(name, adams[0].step - 1) for state in self._states]
        divisor = torch.maximum(*(adam.divisor(state, name) for adam, state in zip(adams, self._states, strict=True)))
        rate = _rate(adams)
        # Weights that differ decay by other amounts, of the gradient or of the update.
        decayed = adams[0].decay(before[0]) * (before[0] - before[1]).abs()
        if adams[0].is_decay_in_gradient:
            errors, decayed = errors + decayed, torch.zeros_like(decayed)
        largest = torch.maximum(*(each.abs() for each in made)).clamp(max=rate)
        # Clipping divides all gradients of a side by its norm.
        moved = (rate + largest) * (errors / divisor + of_norm)
        rounded = ROUNDING * torch.maximum(*(each.abs() for each in before))
        return moved, rate * decayed + rounded


def compare_rates(adams: Sequence[RecordedAdam]) -> Compared:
    """Return the comparison of the learning rates of a step, which precedes those of its updates."""
    first, second = (adam.learning_rate for adam in adams)
    return Compared(
        order=(adams[0].step, UPDATE, 0, -1),
        place=None,
        operation="optimizer",
        what="learning rate",
        difference=abs(first - second) / (_rate(adams) or 1.0),
        explained=_RATES,
    )


def _rate(adams: Sequence[RecordedAdam]) -> float:
    """Return the larger learning rate of both sides: one of 0 would leave no entry to compare."""
    return max(adam.learning_rate for adam in adams)
