"""Calls of kernels that are wrong by themselves."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from pretrain.tools.align.comparing.compared_sides import BACKWARD, FORWARD, WrongCall
from pretrain.tools.align.model_place import Place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pretrain.tools.align.reading.recording import Recording

_ALIKE = 1.5
"""Factor between two errors up to which they are taken for the same mistake."""


def wrong_calls(sides: Sequence[Recording]) -> list[WrongCall]:
    """Return the calls whose errors are not explained, of both sides, in order of computation.

    A call inside another one, such as a softmax in an attention, comes before it.
    """
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
                    place=Place(check["position"], check["module"]),
                    operation=check["operation"],
                    what=what,
                    error=float("inf") if error is None else error,
                    explained=explained,
                    call=check["call"],
                )


def without_alike(wrong: Sequence[WrongCall], sides: Sequence[Recording]) -> tuple[list[WrongCall], list[WrongCall]]:
    """Divide wrong calls into those of one side alone, and those that both sides get wrong by about as much.

    What is the same in both does not make them differ. Ranks are compared one by one where both sides have one layout.

    Returns:
        those of one side alone, and the first side's of the others; in order of computation.
    """
    by_rank = sides[0].manifest["layout"] == sides[1].manifest["layout"]
    amounts: list[dict[tuple[object, ...], list[float]]] = [defaultdict(list), defaultdict(list)]
    for each in wrong:
        amounts[each.side][_key(each, by_rank=by_rank)].append(each.error)
    ordered = sorted(wrong, key=lambda each: each.order)
    alike = [
        any(_agree(each.error, other) for other in amounts[1 - each.side].get(_key(each, by_rank=by_rank), []))
        for each in ordered
    ]
    return (
        [each for each, is_alike in zip(ordered, alike, strict=True) if not is_alike],
        [each for each, is_alike in zip(ordered, alike, strict=True) if is_alike and each.side == 0],
    )


def _key(wrong: WrongCall, *, by_rank: bool) -> tuple[object, ...]:
    return wrong.step, wrong.place, wrong.operation, wrong.call, wrong.what, wrong.rank if by_rank else None


def _agree(first: float, second: float) -> bool:
    return first == second or max(first, second) <= _ALIKE * min(first, second)
