"""Work of one micro-batch, and of the rest of a step: the difference between two steps of a trace."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeVar

from pretrain.tools.plan.costs import Costs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pretrain.tools.plan.trace.place import Place
    from pretrain.tools.plan.trace.rank_trace import RankTrace

Item = TypeVar("Item")


def costs_of(trace: RankTrace) -> Costs:
    """Return the costs of a trace's last two steps, which have different numbers of micro-batches if there are two."""
    operations, messages = trace.work.operations, trace.work.messages
    forward, rest_forward = _split(trace, operations, lambda place: _passes(place) and not place.is_backward)
    backward, rest_backward = _split(trace, operations, lambda place: _passes(place) and place.is_backward)
    last = len(trace.steps)
    rest = of_step(operations, last, lambda place: not _passes(place))
    sent, sent_once = _split(trace, messages, _passes)
    of_update = of_step(messages, last, lambda place: not _passes(place))
    return Costs(
        forward=forward,
        backward=backward,
        once=Counter(rest_forward) + Counter(rest_backward) + rest,
        messages=sent,
        messages_once=Counter(sent_once) + of_update,
    )


def _passes(place: Place) -> bool:
    return place.phase == "forward-backward"


def _split(
    trace: RankTrace, counted: Mapping[tuple[Place, Item], int], chosen: Callable[[Place], bool]
) -> tuple[dict[Item, float], dict[Item, float]]:
    """Return how often each item comes in a micro-batch, and how often in a step besides."""
    last = len(trace.steps)
    counts = {step: of_step(counted, step, chosen) for step in (last - 1, last)}
    fewer, more = (trace.micro_batches[step - 1] if step > 0 else 0 for step in (last - 1, last))
    if more == fewer:
        return {item: count / more for item, count in counts[last].items()}, {}
    each = {
        item: (count - counts[last - 1][item]) / (more - fewer)
        for item, count in counts[last].items()
        if count > counts[last - 1][item]
    }
    once = {item: count - each.get(item, 0.0) * more for item, count in counts[last].items()}
    return each, {item: count for item, count in once.items() if count > 0}


def of_step(counted: Mapping[tuple[Place, Item], int], step: int, chosen: Callable[[Place], bool]) -> Counter[Item]:
    """Return how often each item comes in a step of a trace, in the places that are chosen."""
    found: Counter[Item] = Counter()
    for (place, item), count in counted.items():
        if place.step == step and chosen(place):
            found[item] += count
    return found
