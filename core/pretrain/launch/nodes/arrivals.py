"""Nodes that have come for an attempt of a run: their order, and how many of them the layout takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.errors import RecipeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrival:
    """Word of one node; plain values.

    Attributes:
        number: of arrivals at this attempt, from 1.
        place: its node rank of the attempt before, or of --node-rank; None: any.
        ranks: that it starts.
        host: its name.
        launcher: identity of its launcher, which gives signs of life.
    """

    number: int
    place: int | None
    ranks: int
    host: str
    launcher: str = ""


def with_one_place(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Return those nodes, two or more, that want the place that the first of them wants; [] if no two want the same."""
    for arrival in arrivals:
        same = [other for other in arrivals if other.place is not None and other.place == arrival.place]
        if len(same) > 1:
            return same
    return []


def in_order(arrivals: Sequence[Arrival], count: int) -> list[Arrival]:
    """Return at most `count` nodes in the order of their ranks: on their places, then as they came."""
    placed: dict[int, Arrival] = {}
    others = []
    for arrival in sorted(arrivals, key=lambda each: each.number):
        if arrival.place is None or not 0 <= arrival.place < count or arrival.place in placed:
            others.append(arrival)
        else:
            placed[arrival.place] = arrival
    vacant = (place for place in range(count) if place not in placed)
    placed.update(zip(vacant, others, strict=False))
    return [placed[place] for place in sorted(placed)]


def largest_fitting(ranks: Sequence[int], fewest: int, check: Callable[[int], object]) -> int:
    """Return how many of the first nodes the layout takes at most.

    Args:
        ranks: of each node that is there, in order.
        fewest: nodes that there must be; no more than are there.
        check: raises RecipeError if a number of ranks does not fit the recipe.

    Raises:
        RecipeError: no such number of nodes fits; that of all that are there.
    """
    reason: RecipeError | None = None
    for count in range(len(ranks), max(1, fewest) - 1, -1):
        try:
            check(sum(ranks[:count]))
        except RecipeError as error:
            reason = reason or error
        else:
            return count
    raise reason or RecipeError(f"{len(ranks)} nodes are there; {fewest} are needed.")
