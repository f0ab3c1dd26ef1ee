"""Comparison of two recordings."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from pretrain.tools.align.comparing.activations import compare_activations
from pretrain.tools.align.comparing.compared_sides import LOSS, Compared, Outcome
from pretrain.tools.align.comparing.compatible import allowed_at_start, require_compatible, require_same_start
from pretrain.tools.align.comparing.explained import Explained, coarser
from pretrain.tools.align.comparing.kernel_calls import without_alike, wrong_calls
from pretrain.tools.align.comparing.parameter_steps import ParameterSteps
from pretrain.tools.align.comparing.unchecked import unchecked
from pretrain.tools.align.reading.points import Points

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.tools.align.reading.recording import Recording


def compare(first: Recording, second: Recording) -> Outcome:
    """Compare two recordings, in order of computation.

    Raises:
        RunError: they are of different trainings, samples or weights.
    """
    sides = (first, second)
    notes = require_compatible(sides)
    parameters = ParameterSteps(sides)
    only_one = parameters.names_differ()
    allowed = allowed_at_start([side.dtype for side in sides])
    require_same_start([] if only_one else parameters.differing_start(allowed), only_one)
    dtype = coarser(first.dtype, second.dtype)

    @cache
    def explained(step: int) -> Explained:
        drift, row_drift = parameters.drift(step) if step > 1 else (0.0, 0.0)
        return Explained(dtype=dtype, layers=first.layers, drift=drift, row_drift=row_drift)

    points = Points(first), Points(second)
    overflowed = {step for step in range(1, first.steps + 1) if any(side.step(step)["skipped"] for side in sides)}
    compared, skipped = compare_activations(*points, explained, overflowed)
    wrong = wrong_calls(sides)
    for step in range(1, first.steps + 1):
        compared += _losses(sides, step, explained(step))
        if step in overflowed:
            continue
        compared += parameters.compare(step, explained(step))
        wrong += parameters.wrong_norm(step)
        wrong += parameters.wrong_updates(step)
    compared.sort(key=lambda each: each.order)
    differing = next((each for each in compared if each.differs), None)
    apart, alike = without_alike(wrong, sides)
    return Outcome(
        compared=compared,
        wrong=apart,
        alike=alike,
        skipped=[*skipped, *parameters.not_compared],
        notes=[*notes, *_skipped_steps(sides)],
        unchecked="" if differing is None else unchecked(differing, sides, points, explained(differing.step)),
    )


def _losses(sides: Sequence[Recording], step: int, explained: Explained) -> list[Compared]:
    """Compare the losses, and that both sides have taken the step."""
    skips = [side.step(step)["skipped"] for side in sides]
    losses = [side.loss(step) for side in sides]
    numbers = [float("nan") if loss is None else loss for loss in losses]
    difference = abs(numbers[0] - numbers[1]) / max(abs(numbers[0]), 1e-6)
    found = [_of_model(step, "loss", difference, explained.of_loss)]
    if skips[0] != skips[1]:
        found.append(_of_model(step, "one side has skipped the update", float("inf"), 0.0))
    return found


def _of_model(step: int, what: str, difference: float, explained: float) -> Compared:
    return Compared(
        order=(step, LOSS, 0, 0), place=None, operation="", what=what, difference=difference, explained=explained
    )


def _skipped_steps(sides: Sequence[Recording]) -> list[str]:
    steps = range(1, sides[0].steps + 1)
    return [
        f"step {step}: both sides skipped the update; lower precision.loss_scale"
        for step in steps
        if all(side.step(step)["skipped"] for side in sides)
    ]
