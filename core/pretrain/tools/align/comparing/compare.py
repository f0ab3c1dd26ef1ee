"""Comparison of two recordings."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from pretrain.errors import RunError
from pretrain.recipe import Recipe
from pretrain.report.plain_text import some_of
from pretrain.tools.align.comparing.distance import Distance, Explained, coarser
from pretrain.tools.align.comparing.outcome import BACKWARD, FORWARD, LOSS, SIDES, AlignResult, Compared, WrongCall
from pretrain.tools.align.comparing.parameter_steps import ParameterSteps
from pretrain.tools.align.comparing.recording import Points
from pretrain.tools.align.recording.folder import ModulePlace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from pretrain.tools.align.comparing.distance import Copies
    from pretrain.tools.align.comparing.outcome import Order
    from pretrain.tools.align.comparing.recording import PointName, Recording


def compare(first: Recording, second: Recording) -> AlignResult:
    """Compare two recordings, in order of computation."""
    sides = (first, second)
    notes = require_compatible(sides)
    parameters = ParameterSteps(sides)
    allowed = 0.0 if first.dtype == second.dtype else _OF_BF16
    if differing := parameters.differing_start(allowed):
        msg = (
            f"the sides start from different weights: {some_of(differing, _SHOWN)}.\n"
            "Give both the same --checkpoint, or let the second take the first one's (leave out --checkpoint-against)."
        )
        raise RunError(msg)
    dtype = coarser(first.dtype, second.dtype)

    @cache
    def explained(step: int) -> Explained:
        drift, row_drift = parameters.drift(step) if step > 1 else (0.0, 0.0)
        return Explained(dtype=dtype, layers=first.layers, drift=drift, row_drift=row_drift, fp8=first.fp8)

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
    found = next((each for each in compared if each.differs), None)
    apart, alike = without_alike(wrong, sides)
    return AlignResult(
        compared=compared,
        wrong=apart,
        alike=alike,
        skipped=[*skipped, *parameters.not_compared],
        notes=notes,
        unchecked="" if found is None else unchecked(found, sides, points, explained(found.step)),
    )


def _losses(sides: Sequence[Recording], step: int, explained: Explained) -> list[Compared]:
    losses = [side.loss(step) for side in sides]
    first, second = (float("nan") if loss is None else loss for loss in losses)
    loss = Compared(
        order=(step, LOSS, 0, 0),
        what="loss",
        difference=abs(first - second) / max(abs(first), 1e-6),
        explained=explained.of_loss,
    )
    if len({side.step(step)["skipped"] for side in sides}) == 1:
        return [loss]
    return [loss, replace(loss, what="one side has skipped the update", difference=float("inf"), explained=0.0)]


def compare_activations(
    first: Points, second: Points, explained: Callable[[int], Explained], overflowed: Collection[int] = ()
) -> tuple[list[Compared], list[str]]:
    """Compare the recorded tensors that both sides have; return the comparisons, and lines about the others."""
    # The order is the first side's. Gradients of `overflowed` steps are not finite, and not compared.
    ours, theirs = (
        {name: tick for name, tick in side.order().items() if not (name.is_backward and name.step in overflowed)}
        for side in (first, second)
    )
    uneven = _uneven(ours, theirs)
    compared = [
        _compared(name, (ours[name], theirs[name]), (first, second), explained(name.step))
        for name in ours
        if name in theirs and _call_site(name) not in uneven
    ]
    return compared, _not_compared(ours, theirs, uneven)


def _compared(name: PointName, ticks: tuple[int, int], points: tuple[Points, Points], explained: Explained) -> Compared:
    distance = Distance.between_parts(points[0].parts(name), points[1].parts(name))
    at = explained.at(name.place.position, is_backward=name.is_backward)
    of_row = explained.of_row(name.place.position, is_backward=name.is_backward)
    by_row = distance.row / of_row > distance.whole / at
    return Compared(
        order=order_of(name, ticks[0]),
        place=name.place,
        operation=name.operation,
        what=what_of(name) + (", worst token" if by_row else ""),
        difference=distance.row if by_row else distance.whole,
        explained=of_row if by_row else at,
        ticks=ticks,
    )


def order_of(name: PointName, order: int) -> Order:
    """Return the place of a tensor in the order of computation."""
    position = -name.place.position if name.is_backward else name.place.position
    return name.step, BACKWARD if name.is_backward else FORWARD, position, order


def what_of(name: PointName) -> str:
    """Return the name of a tensor in words."""
    what = name.name if not name.is_backward else f"gradient of {name.name}"
    where = f" in {name.place.module}" if name.place.module else ""
    if not name.operation:
        return f"{what} of the layer" if not name.place.module else f"{what} of {name.place.module}"
    where += f", call {name.call + 1}" if name.call else ""
    return f"{what} of {name.operation}{where}" if not name.is_backward else f"{name.operation}'s {what}{where}"


def _call_site(name: PointName) -> tuple[object, ...]:
    return name.step, name.place, name.operation


def _uneven(ours: Iterable[PointName], theirs: Iterable[PointName]) -> set[tuple[object, ...]]:
    """Return the places at which the sides call an operation a different number of times."""
    first, second = _calls(ours), _calls(theirs)
    return {site for site in {**first, **second} if first.get(site) != second.get(site)}


def _calls(names: Iterable[PointName]) -> dict[tuple[object, ...], set[int]]:
    calls: dict[tuple[object, ...], set[int]] = defaultdict(set)
    for name in names:
        found = calls[_call_site(name)]
        if not name.is_backward:
            found.add(name.call)
    return calls


def _not_compared(
    ours: Iterable[PointName], theirs: Iterable[PointName], uneven: Iterable[tuple[object, ...]]
) -> list[str]:
    sites = set(uneven)
    lines = {
        f"{operation or 'output'} in {getattr(place, 'module', '') or 'the layer'}: the sides make different calls"
        for _, place, operation in sites
    }
    alone = {name for name in set(ours) ^ set(theirs) if _call_site(name) not in sites}
    return sorted(lines | {f"{what_of(name)}: only one side has it" for name in alone})


def unchecked(first: Compared, sides: Sequence[Recording], points: tuple[Points, Points], explained: Explained) -> str:
    """Return the reason that the first differing call was not checked; "" if both sides did, or it is no call."""
    if first.ticks is None:
        return ""
    wanted = first.order, first.place, first.operation
    orders = points[0].order().items()
    name = next(name for name, order in orders if (order_of(name, order), name.place, name.operation) == wanted)
    differing = _differing_samples(name, points, explained)
    for number, side in enumerate(SIDES):
        least = min(points[number].micro_batches(name)[sample] for sample in differing)
        if least:
            return f"it is in micro-batch {least + 1} of the {side} side, and only the first one's calls are checked"
        if name.operation and not _is_checked(name, sides[number]):
            return f"the {side} side did not check it"
    return ""


def _differing_samples(name: PointName, points: tuple[Points, Points], explained: Explained) -> list[int]:
    """Return the samples that differ; if none does by itself, the one that differs most."""
    samples = zip(*(_samples(side, name) for side in points), strict=False)
    distances = [Distance.between_parts([ours], [theirs]) for ours, theirs in samples]
    position, is_backward = name.place.position, name.is_backward
    found = [
        sample
        for sample, distance in enumerate(distances)
        if distance.whole > explained.at(position, is_backward=is_backward)
        or distance.row > explained.of_row(position, is_backward=is_backward)
    ]
    return found or [max(range(len(distances)), key=lambda sample: distances[sample].whole)]


def _samples(points: Points, name: PointName) -> Iterator[Copies]:
    for copies in points.parts(name):
        for sample in range(len(copies[0])):
            yield [each[sample : sample + 1] for each in copies]


def _is_checked(name: PointName, side: Recording) -> bool:
    what = f"gradient of {name.name}" if name.is_backward else "output"
    wanted = (name.step, name.place.position, name.place.module, name.operation, name.call)
    return any(
        what in check["errors"]
        and (check["step"], check["position"], check["module"], check["operation"], check["call"]) == wanted
        for check in side.checks()
    )


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
    """Divide wrong calls into those of one side alone, and those that are about as wrong on both sides."""
    # What is the same in both does not make them differ. Ranks are compared one by one where both sides have one
    # layout.
    by_rank = sides[0].manifest["layout"] == sides[1].manifest["layout"]
    amounts: list[dict[tuple[object, ...], list[float]]] = [defaultdict(list), defaultdict(list)]
    for each in wrong:
        amounts[each.side][_key(each, by_rank=by_rank)].append(each.error)
    ordered = sorted(wrong, key=lambda each: each.order)
    apart, alike = [], []
    for each in ordered:
        others, error = amounts[1 - each.side][_key(each, by_rank=by_rank)], each.error
        if not any(error == other or max(error, other) <= _ALIKE * min(error, other) for other in others):
            apart.append(each)
        elif each.side == 0:
            alike.append(each)
    return apart, alike


def _key(wrong: WrongCall, *, by_rank: bool) -> tuple[object, ...]:
    return wrong.step, wrong.place, wrong.operation, wrong.call, wrong.what, wrong.rank if by_rank else None


_SECTIONS = ("model", "optimizer")
_KEYS = (
    ("train", "global_batch_size"),
    ("train", "seed"),
    ("train", "calculate_per_token_loss"),
    ("data", "reset_position_ids"),
    ("data", "reset_attention_mask"),
    ("precision", "fp8"),
    ("precision", "fp8_wgrad"),
)
"""Keys that must be the same besides; those of `data` are not in the samples' hash."""
_SHOWN = 4
_UNKNOWN = object()
_OF_BF16 = 2.0**-8  # relative difference of weights that one side has in bf16


def require_compatible(sides: Sequence[Recording]) -> list[str]:
    """Check that model, optimizer, steps, recorded positions and samples are the same."""
    first, second = (side.manifest["recipe"] for side in sides)
    differing, notes = differing_keys(first, second)
    notes += other_keys(first, second)
    names = ("--steps", "--positions", "the vocabulary")
    sizes = ((side.steps, side.manifest["positions"], side.manifest["vocab_size"]) for side in sides)
    for name, ours, theirs in zip(names, *sizes, strict=True):
        if ours != theirs:
            differing.append(f"{name}: {ours} and {theirs}")
    if differing:
        raise RunError(different(differing))
    _require_same_samples(*(side.samples for side in sides))
    return notes


def different(differing: Sequence[str]) -> str:
    """Return the message about what differs."""
    shown = "; ".join(differing[:_SHOWN])
    wanted = "Give both the same model, optimizer, data, batch, fp8 and --steps."
    return f"the sides train different things: {shown}.\n{wanted}"


def differing_keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the keys that must be equal and are not, and notes about keys that only one version knows."""
    # A key that a recipe lacks was not known to the version that recorded it: it counts as this version's default.
    differing, notes = [], []
    for key, ours, theirs in _pairs(first, second, must_match=True):
        if _UNKNOWN in (ours, theirs):
            notes.append(f"{key} was not compared: only one side's version of pretrain knows it")
        elif ours != theirs:
            differing.append(f"{key} {ours} and {theirs}")
    dtypes = [side["precision"]["dtype"] for side in (first, second)]
    if first["precision"].get("fp8") and dtypes[0] != dtypes[1]:  # weights in bf16 are other numbers of fp8
        differing.append(f"precision.dtype {dtypes[0]} and {dtypes[1]} with fp8")
    return differing, notes


def other_keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return a line with the keys that may differ and do; no line without such a key."""
    pairs = _pairs(first, second, must_match=False)
    found = [line for pair in pairs for line in _differing(*pair)]
    return [f"the recipes differ in {'; '.join(found)}"] if found else []


def _pairs(first: Mapping[str, Any], second: Mapping[str, Any], *, must_match: bool) -> Iterator[tuple[str, Any, Any]]:
    """Yield "section.key" and both values; where a recipe lacks it, this version's default, or `_UNKNOWN`."""
    for name in {**first, **second}:
        ours, theirs = first.get(name, {}), second.get(name, {})
        field = Recipe.model_fields.get(name)
        defaults = getattr(field.annotation, "model_fields", {}) if field else {}
        for key in {**ours, **theirs}:
            if must_match == (name in _SECTIONS or (name, key) in _KEYS):
                default = defaults[key].default if key in defaults else _UNKNOWN
                yield f"{name}.{key}", ours.get(key, default), theirs.get(key, default)


def _differing(name: str, first: Any, second: Any) -> Iterator[str]:
    if isinstance(first, dict) and isinstance(second, dict):
        for key in {**first, **second}:
            yield from _differing(f"{name}.{key}", first.get(key, _UNKNOWN), second.get(key, _UNKNOWN))
    elif first != second:
        yield f"{name} {_shown(first)} and {_shown(second)}"


def _shown(value: Any) -> str:
    return "none" if value is None or value is _UNKNOWN else str(value)


def _require_same_samples(first: dict[str, int], second: dict[str, int]) -> None:
    other = [name for name in first if second.get(name) != first[name]]
    if other or len(first) != len(second):
        names = other or [*(first.keys() ^ second.keys())]
        step, sample = min(tuple(map(int, name.split("."))) for name in names)
        msg = (
            f"the sides read different text, first in step {step}, sample {sample}.\n"
            "Use the same token files, tokenizer, data section, train.seed and training length."
        )
        raise RunError(msg)
