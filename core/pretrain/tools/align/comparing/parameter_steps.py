"""Compares the parameters' gradients and updates, and checks the optimizer by its moments."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from pretrain.tools.align.comparing.adam_update import ROUNDING, TOLERANCE, RecordedAdam
from pretrain.tools.align.comparing.distance import UNIT, vectors, worst_row
from pretrain.tools.align.comparing.outcome import GRADIENTS, NORM, UPDATE, Compared, WrongCall
from pretrain.tools.align.comparing.parameters import Parameters, place_of_parameter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from pretrain.tools.align.comparing.distance import Explained
    from pretrain.tools.align.comparing.outcome import Order
    from pretrain.tools.align.comparing.recording import Recording
    from pretrain.tools.align.recording.folder import ModulePlace

_SMALL = 1e-3
"""Part of the whole gradient's root mean square to which a parameter's is compared at least: sums of terms that cancel
have the rounding errors of the terms."""
_VECTORS = 0.02
"""Entries that a vector's are compared to at least: vectors begin as zeros or ones, matrices with this deviation."""
_NORM_BY_GRADIENTS = {"fp32": 1e-5, "fp16": 1e-5, "bf16": 1e-3}
"""Difference of the gradient norm from that of the gradients that Adam was given: up to 2e-7 was measured everywhere,
but 1.3e-4 where DeepSpeed adds gradients up in bf16 without ZeRO."""


class ParameterSteps:
    """The parameters of both sides."""

    def __init__(self, sides: Sequence[Recording]) -> None:
        self._sides = sides
        self._states = [Parameters(side) for side in sides]
        self._layers = sides[0].layers
        self._squares: dict[tuple[int, int], float] = {}
        self._updates = Updates(self._states)

    def drift(self, step: int) -> tuple[float, float]:
        """Return the largest relative differences of a weight, and of a weight's row or column, before a step."""
        names = self._states[0].names
        whole = max((self._difference(name, step - 1) for name in names), default=0.0)
        return whole, max((self._row_difference(name, step - 1) for name in names), default=0.0)

    def differing_start(self, allowed: float) -> list[str]:
        """Return the names of weights that only one side has, or else that differ before the first step."""
        names, others = (state.names for state in self._states)
        return sorted(set(names) ^ set(others)) or [name for name in names if self._difference(name, 0) > allowed]

    def compare(self, step: int, explained: Explained) -> Iterator[Compared]:
        """Yield the comparisons of a step that both sides have taken, parameter by parameter."""
        adams = [self._adam(side, step) for side in range(2)]
        factors = [self._unclipped(side, step) for side in range(2)]
        typical = factors[0] * (self._squared(0, step) / self._count) ** 0.5
        for number, name in enumerate(self._states[0].names):
            sides = zip(adams, self._states, factors, strict=True)
            first, second = (adam.gradient(state, name) * factor for adam, state, factor in sides)
            place = place_of_parameter(name, self._layers)
            what, difference, allowed = _of_gradients(first, second, _SMALL * typical, explained)
            yield Compared(
                order=(step, GRADIENTS, -place.position, number),
                place=place,
                what=f"gradient of {name}{what}",
                difference=difference,
                explained=allowed,
            )
            if first.shape == second.shape:
                errors = gradient_errors(first, second, _SMALL * typical, explained) / min(factors)
                update = self._updates.compare(name, place, number, adams, errors, explained.of_norm)
                if update is not None:
                    yield update
        ours, theirs = (self._norm_of(side, step) for side in range(2))
        largest = max(ours, theirs)
        yield Compared(
            order=(step, NORM, 0, 0),
            operation="optimizer",
            what="gradient norm",
            difference=abs(ours - theirs) / largest if largest else 0.0,
            explained=explained.of_norm,
        )
        yield compare_rates(adams)

    @property
    def not_compared(self) -> list[str]:
        """Updates that were not compared in the steps so far, in words."""
        return self._updates.not_compared

    def wrong_updates(self, step: int) -> Iterator[WrongCall]:
        """Yield the parameters whose update in a side is not that of Adam in float64 with the same moments."""
        for side, state in enumerate(self._states):
            adam = self._adam(side, step)
            for number, name in enumerate(state.names):
                place = place_of_parameter(name, self._layers)
                # How far the model's weight is from the optimizer's, rounded; and what rounding explains.
                main, used = state.weight(name, step), state.model_weight(name, step)
                stale = vectors(main, used), 2 * UNIT[self._sides[side].dtype]
                for what, (error, explained) in {**adam.errors(state, name), "weight in the model,": stale}.items():
                    if not error <= explained:
                        order = step, UPDATE, place.position, number
                        yield _wrong(order, side, place, f"{what} of {name}", error, explained)

    def wrong_norm(self, step: int) -> Iterator[WrongCall]:
        """Yield the sides whose gradient norm is not that of the gradients."""
        for side in range(2):
            squared = self._squared(side, step)
            expected = self._norm_of(side, step) / self._unclipped(side, step)
            error = abs(squared**0.5 - expected) / expected if expected else 0.0
            allowed = _NORM_BY_GRADIENTS[self._sides[side].dtype]
            if not error <= allowed:
                place = place_of_parameter("", self._layers)
                yield _wrong((step, NORM, 0, 0), side, place, "gradient norm", error, allowed)

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


def _wrong(order: Order, side: int, place: ModulePlace, what: str, error: float, explained: float) -> WrongCall:
    found: dict[str, Any] = {"what": what, "error": error, "explained": explained}
    return WrongCall(order=order, side=side, rank=0, place=place, operation="optimizer", **found)


def _of_gradients(first: Tensor, second: Tensor, small: float, explained: Explained) -> tuple[str, float, float]:
    """Return what of a gradient differs most, the whole or a row, with its difference and the explained one."""
    width = first.numel() / first.shape[0] if first.dim() > 1 else 1
    whole = vectors(first, second, floor=small * first.numel() ** 0.5)
    row = worst_row(first, second, floor=small * width**0.5)
    if row / explained.of_gradient_row > whole / explained.of_gradient:
        return f", worst {'row' if first.dim() > 1 else 'entry'}", row, explained.of_gradient_row
    return "", whole, explained.of_gradient


_WELL_CONDITIONED = 0.5
"""Entries are compared when gradient noise moves them by less than this share of the learning rate: Adam makes the same
step of any gradient, and an entry that is all noise has any sign."""
_RATES = 1e-6  # difference of the learning rates that is explained: that of a number in fp32


def gradient_errors(first: Tensor, second: Tensor, small: float, explained: Explained) -> Tensor:
    """Return the explained difference of a gradient's entries, [rows, 1, ...], at least that of entries of `small`."""
    squares = torch.maximum(first.square(), second.square())
    rows = squares.mean(tuple(range(1, squares.dim())), keepdim=True) if squares.dim() > 1 else squares
    least = max(float(squares.mean().sqrt()), small)
    return explained.of_gradient_row * rows.sqrt().clamp(min=least)


class Updates:
    """Updates of the parameters of both sides, step by step."""

    # Adam divides the mean m of the gradients by the root r of their mean square. The explained difference e of an
    # entry's gradient moves both by e at the most: a mean or a norm changes by at most e when its inputs do. So an
    # update of the learning rate l, u = l m / (r + eps), moves by (l + |u|) e / (r + eps). What a wrong side makes may
    # not explain itself: |u| counts as l at the most.

    def __init__(self, states: Sequence[Parameters]) -> None:
        self._states = states
        self._errors: dict[str, Tensor] = {}
        self._left_out: dict[int, list[str]] = defaultdict(list)

    def compare(
        self,
        name: str,
        place: ModulePlace,
        number: int,
        adams: Sequence[RecordedAdam],
        errors: Tensor,
        of_norm: float,
    ) -> Compared | None:
        """Return the comparison of a parameter's update; None if all of its gradient is rounding error."""
        # `errors` and `of_norm`: explained differences of the clipped gradient's entries and of the gradient norm.
        self._errors[name] = errors = torch.maximum(errors, self._errors.get(name, errors))
        step = adams[0].step
        made = [state.weight(name, step) - state.weight(name, step - 1) for state in self._states]
        moved, unmoved = self._explained(name, adams, made, errors, of_norm)
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
        operation="optimizer",
        what="learning rate",
        difference=abs(first - second) / (_rate(adams) or 1.0),
        explained=_RATES,
    )


def _rate(adams: Sequence[RecordedAdam]) -> float:
    """Return the larger learning rate of both sides: one of 0 would leave no entry to compare."""
    return max(adam.learning_rate for adam in adams)
