"""Comparison of two recordings."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from pretrain.tools.align.comparing.activations import compare_activations, unchecked
from pretrain.tools.align.comparing.compatible import allowed_at_start, require_compatible, require_same_start
from pretrain.tools.align.comparing.distance import Explained, coarser
from pretrain.tools.align.comparing.outcome import BACKWARD, FORWARD, LOSS, AlignResult, Compared, WrongCall
from pretrain.tools.align.comparing.parameter_steps import ParameterSteps
from pretrain.tools.align.comparing.recording import Points
from pretrain.tools.align.recording.folder import ModulePlace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pretrain.tools.align.comparing.recording import Recording


def compare(first: Recording, second: Recording) -> AlignResult:
    """Compare two recordings, in order of computation."""
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
        if step not in overflowed:
            compared += parameters.compare(step, explained(step))
            wrong += parameters.wrong_norm(step)
            wrong += parameters.wrong_updates(step)
        elif all(side.step(step)["skipped"] for side in sides):
            notes.append(f"step {step}: both sides skipped the update; lower precision.loss_scale")
    compared.sort(key=lambda each: each.order)
    differing = next((each for each in compared if each.differs), None)
    apart, alike = without_alike(wrong, sides)
    return AlignResult(
        compared=compared,
        wrong=apart,
        alike=alike,
        skipped=[*skipped, *parameters.not_compared],
        notes=notes,
        unchecked="" if differing is None else unchecked(differing, sides, points, explained(differing.step)),
    )


def _losses(sides: Sequence[Recording], step: int, explained: Explained) -> list[Compared]:
    losses = [side.loss(step) for side in sides]
    first, second = (float("nan") if loss is None else loss for loss in losses)
    loss = Compared(
        order=(step, LOSS, 0, 0),
        place=None,
        operation="",
        what="loss",
        difference=abs(first - second) / max(abs(first), 1e-6),
        explained=explained.of_loss,
    )
    if len({side.step(step)["skipped"] for side in sides}) == 1:
        return [loss]
    return [loss, replace(loss, what="one side has skipped the update", difference=float("inf"), explained=0.0)]


_ALIKE = 1.5  # factor between two errors up to which they are taken for the same mistake


def wrong_calls(sides: Sequence[Recording]) -> list[WrongCall]:
    """Return the calls whose errors are not explained, of both sides, in order of computation."""
    # A call inside another one, such as a softmax in an attention, comes before it.
    return sorted((wrong for side in range(2) for wrong in _of_side(side, sides[side])), key=lambda wrong: wrong.order)


def _of_side(side: int, recording: Recording) -> Iterator[WrongCall]:
    for check in recording.checks():
        for what, (error, explained) in check["errors"].items():
            if error is None or not error <= explained:
                is_forward = what == "output"
                position = check["position"] if is_forward else -check["position"]
                order = check["order"][0 if is_forward else 1]
                yield WrongCall(
                    order=(check["step"], FORWARD if is_forward else BACKWARD, position, order),
                    side=side,
                    rank=check["rank"],
                    place=ModulePlace(check["position"], check["module"]),
                    operation=check["operation"],
                    what=what,
                    error=float("inf") if error is None else error,
                    explained=explained,
                    call=check["call"],
                )


def without_alike(wrong: Sequence[WrongCall], sides: Sequence[Recording]) -> tuple[list[WrongCall], list[WrongCall]]:
    """Divide wrong calls into those of one side alone, and those that both sides get wrong by about as much."""
    # What is the same in both does not make them differ. Ranks are compared one by one where both sides have one
    # layout.
    by_rank = sides[0].manifest["layout"] == sides[1].manifest["layout"]
    amounts: list[dict[tuple[object, ...], list[float]]] = [defaultdict(list), defaultdict(list)]
    for each in wrong:
        amounts[each.side][_key(each, by_rank=by_rank)].append(each.error)
    ordered = sorted(wrong, key=lambda each: each.order)
    apart, alike = [], []
    for each in ordered:
        others = amounts[1 - each.side][_key(each, by_rank=by_rank)]
        if not any(_agree(each.error, other) for other in others):
            apart.append(each)
        elif each.side == 0:
            alike.append(each)
    return apart, alike


def _key(wrong: WrongCall, *, by_rank: bool) -> tuple[object, ...]:
    return wrong.step, wrong.place, wrong.operation, wrong.call, wrong.what, wrong.rank if by_rank else None


def _agree(first: float, second: float) -> bool:
    return first == second or max(first, second) <= _ALIKE * min(first, second)
