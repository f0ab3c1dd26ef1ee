"""Comparison of activations and their gradients."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from pretrain.tools.align.comparing.distance import Distance
from pretrain.tools.align.comparing.outcome import BACKWARD, FORWARD, SIDES, Compared

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from pretrain.tools.align.comparing.distance import Copies, Explained
    from pretrain.tools.align.comparing.outcome import Order
    from pretrain.tools.align.comparing.recording import PointName, Points, Recording


def compare_activations(
    first: Points, second: Points, explained: Callable[[int], Explained], overflowed: Collection[int] = ()
) -> tuple[list[Compared], list[str]]:
    """Compare all recorded tensors that both sides have; return that, unsorted, and what is not compared, in words."""
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
    """Return the places at which an operation is called more often in one side: its calls are not the same ones."""
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
    """Return the reason that the call which differs was not checked by itself; "" if both were, or it is none."""
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
    """Return the samples that differ, or, if only all together do, the farthest one."""
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
