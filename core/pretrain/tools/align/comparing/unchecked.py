"""The first tensor that differs, and the check by itself of the call that computed it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.align.comparing.activations import order_of
from pretrain.tools.align.comparing.distance import Distance

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pretrain.tools.align.comparing.compared_sides import Compared
    from pretrain.tools.align.comparing.distance import Copies
    from pretrain.tools.align.comparing.explained import Explained
    from pretrain.tools.align.reading.points import PointName, Points
    from pretrain.tools.align.reading.recording import Recording

_SIDES = ("first", "second")


def unchecked(first: Compared, sides: Sequence[Recording], points: tuple[Points, Points], explained: Explained) -> str:
    """Return the reason that the call which differs was not checked by itself; "" if both sides' were, or it is none.

    Args:
        first: the first comparison that differs.
        sides: the recordings.
        points: their tensors.
        explained: what the dtype explains in the step.
    """
    if first.ticks is None:
        return ""
    wanted = first.order, first.place, first.operation
    orders = points[0].order().items()
    name = next(name for name, order in orders if (order_of(name, order), name.place, name.operation) == wanted)
    differing = _differing_samples(name, points, explained)
    for number, side in enumerate(_SIDES):
        least = min(points[number].micro_batches(name)[sample] for sample in differing)
        if least:
            return f"it is of micro-batch {least + 1} of the {side} side, and only those of the first are checked"
        if name.operation and not _is_checked(name, sides[number]):
            return f"the {side} side has no check of it"
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
    """Yield a tensor sample by sample."""
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
