"""Compares the parameters' gradients and updates, and checks the optimizer by its moments."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from pretrain.tools.align.comparing.adam_update import RecordedAdam
from pretrain.tools.align.comparing.distance import UNIT, vectors, worst_row
from pretrain.tools.align.comparing.outcome import GRADIENTS, NORM, UPDATE, Compared, WrongCall
from pretrain.tools.align.comparing.parameters import Parameters, place_of_parameter
from pretrain.tools.align.comparing.updates import Gradients, Updates, compare_rates

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from pretrain.tools.align.comparing.distance import Explained
    from pretrain.tools.align.comparing.recording import Recording

_SMALL = 1e-3
"""Part of the whole gradient's root mean square to which a parameter's is compared at least: sums of terms that cancel
have the rounding errors of the terms."""

_VECTORS = 0.02
"""Entries that a vector's are compared to at least."""

_NORM_BY_GRADIENTS = {"fp32": 1e-5, "fp16": 1e-5, "bf16": 1e-3}
"""Difference of the gradient norm from that of the gradients that Adam was given: up to 2e-7 was measured everywhere,
but 1.3e-4 where DeepSpeed adds gradients up in bf16 without ZeRO."""


class ParameterSteps:
    """The parameters of both sides."""

    def __init__(self, sides: Sequence[Recording]) -> None:
        """Read nothing yet."""
        self._sides = sides
        self._states = [Parameters(side) for side in sides]
        self._layers = sides[0].layers
        self._squares: dict[tuple[int, int], float] = {}
        self._updates = Updates(self._states)

    def drift(self, step: int) -> tuple[float, float]:
        """Return the largest relative differences of a weight, and of a weight's row or column, before a step.

        Vectors begin as zeros or ones: they are compared with a vector of entries of 0.02 at least, the deviation with
        which matrices begin.
        """
        names = self._states[0].names
        whole = max((self._difference(name, step - 1) for name in names), default=0.0)
        return whole, max((self._row_difference(name, step - 1) for name in names), default=0.0)

    def differing_start(self, allowed: float) -> list[str]:
        """Return the names of weights that differ before the first step."""
        return [name for name in self._states[0].names if self._difference(name, 0) > allowed]

    def names_differ(self) -> list[str]:
        """Return the names of parameters that only one side has."""
        return sorted(set(self._states[0].names) ^ set(self._states[1].names))

    def compare(self, step: int, explained: Explained) -> Iterator[Compared]:
        """Yield the comparisons of a step that both sides have taken, parameter by parameter."""
        adams = [self._adam(side, step) for side in range(2)]
        factors = [self._unclipped(side, step) for side in range(2)]
        typical = factors[0] * (self._squared(0, step) / self._count) ** 0.5
        for number, name in enumerate(self._states[0].names):
            first, second = (
                adam.gradient(state, name) * factor
                for adam, state, factor in zip(adams, self._states, factors, strict=True)
            )
            place = place_of_parameter(name, self._layers)
            what, difference, allowed = _of_gradients(first, second, _SMALL * typical, explained)
            yield Compared(
                order=(step, GRADIENTS, -place.position, number),
                place=place,
                operation="",
                what=f"gradient of {name}{what}",
                difference=difference,
                explained=allowed,
            )
            if first.shape == second.shape:
                gradients = Gradients(both=(first, second), small=_SMALL * typical, factor=min(factors))
                update = self._updates.compare(name, place, number, adams, gradients, explained)
                if update is not None:
                    yield update
        yield self._norm(step, explained)
        yield compare_rates(adams)

    @property
    def not_compared(self) -> list[str]:
        """Updates that were not compared in the steps so far, in words."""
        return self._updates.not_compared

    def wrong_updates(self, step: int) -> Iterator[WrongCall]:
        """Yield the parameters that a side has updated otherwise than Adam, in float64, with the same moments."""
        for side, state in enumerate(self._states):
            adam = self._adam(side, step)
            for number, name in enumerate(state.names):
                place = place_of_parameter(name, self._layers)
                stale = self._stale(side, name, step)
                for what, (error, explained) in {**adam.errors(state, name), "weight in the model,": stale}.items():
                    if not error <= explained:
                        yield WrongCall(
                            order=(step, UPDATE, place.position, number),
                            side=side,
                            rank=0,
                            place=place,
                            operation="optimizer",
                            what=f"{what} of {name}",
                            error=error,
                            explained=explained,
                        )

    def _stale(self, side: int, name: str, step: int) -> tuple[float, float]:
        """Return how far the model's weight is from the optimizer's, rounded; and what rounding explains."""
        state = self._states[side]
        main, used = state.weight(name, step), state.model_weight(name, step)
        return vectors(main, used), 2 * UNIT[self._sides[side].dtype]

    def wrong_norm(self, step: int) -> Iterator[WrongCall]:
        """Yield the sides whose gradient norm is not that of the gradients."""
        for side in range(2):
            squared = self._squared(side, step)
            expected = self._norm_of(side, step) / self._unclipped(side, step)
            error = abs(squared**0.5 - expected) / expected if expected else 0.0
            allowed = _NORM_BY_GRADIENTS[self._sides[side].dtype]
            if not error <= allowed:
                yield WrongCall(
                    order=(step, NORM, 0, 0),
                    side=side,
                    rank=0,
                    place=place_of_parameter("", self._layers),
                    operation="optimizer",
                    what="gradient norm",
                    error=error,
                    explained=allowed,
                )

    def _norm(self, step: int, explained: Explained) -> Compared:
        first, second = (self._norm_of(side, step) for side in range(2))
        largest = max(first, second)
        return Compared(
            order=(step, NORM, 0, 0),
            place=None,
            operation="optimizer",
            what="gradient norm",
            difference=abs(first - second) / largest if largest else 0.0,
            explained=explained.of_norm,
        )

    def _squared(self, side: int, step: int) -> float:
        """Return the squared norm of the gradients that Adam was given; they are read one by one, once."""
        if (side, step) not in self._squares:
            adam, state = self._adam(side, step), self._states[side]
            self._squares[side, step] = sum(float(adam.gradient(state, name).square().sum()) for name in state.names)
        return self._squares[side, step]

    @cached_property
    def _count(self) -> int:
        state = self._states[0]
        return sum(state.weight(name, 0).numel() for name in state.names)

    def _norm_of(self, side: int, step: int) -> float:
        norm = self._sides[side].step(step)["grad_norm"]
        return float("nan") if norm is None else float(norm)

    def _unclipped(self, side: int, step: int) -> float:
        """Return the factor that undoes the clipping."""
        clip = float(self._sides[side].manifest["recipe"]["optimizer"]["clip_grad"])
        norm = self._norm_of(side, step)
        return (norm + 1e-6) / clip if clip and norm > clip else 1.0

    def _adam(self, side: int, step: int) -> RecordedAdam:
        recording = self._sides[side]
        return RecordedAdam(
            optimizer=recording.manifest["recipe"]["optimizer"],
            learning_rate=float(recording.step(step)["learning_rate"]),
            step=step,
            taken=sum(not recording.step(each)["skipped"] for each in range(1, step + 1)),
        )

    def _difference(self, name: str, step: int) -> float:
        first, second = (state.weight(name, step) for state in self._states)
        floor = _VECTORS * first.numel() ** 0.5 if first.dim() == 1 else 0.0
        return vectors(first, second, floor=floor)

    def _row_difference(self, name: str, step: int) -> float:
        first, second = (state.weight(name, step) for state in self._states)
        if first.dim() == 1:
            return worst_row(first, second, floor=_VECTORS)
        return max(worst_row(first, second), worst_row(first.transpose(0, 1), second.transpose(0, 1)))


def _of_gradients(first: Tensor, second: Tensor, small: float, explained: Explained) -> tuple[str, float, float]:
    """Return what differs most of a gradient, all or a row; by how much, and how much is explained.

    Args:
        first: one side's gradient.
        second: the other's.
        small: root mean square of entries that are compared to at least.
        explained: what the dtype explains.
    """
    width = first.numel() / first.shape[0] if first.dim() > 1 else 1
    whole = vectors(first, second, floor=small * first.numel() ** 0.5)
    row = worst_row(first, second, floor=small * width**0.5)
    if row / explained.of_gradient_row > whole / explained.of_gradient:
        return f", worst {'row' if first.dim() > 1 else 'entry'}", row, explained.of_gradient_row
    return "", whole, explained.of_gradient
