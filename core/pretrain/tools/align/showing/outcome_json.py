"""Result of a comparison as plain JSON values."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pretrain.tools.align.showing.outcome_text import SIDES, headline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.tools.align.comparing.compared_sides import Compared, Outcome, WrongCall
    from pretrain.tools.align.reading.recording import Recording


def outcome_json(outcome: Outcome, sides: Sequence[Recording]) -> dict[str, Any]:
    """Return the result; numbers that are not finite as null."""
    return {
        "aligned": outcome.is_aligned,
        "text": headline(outcome, sides),
        "first_difference": _found(outcome.first),
        "wrong_calls": [{**_found(each), "side": SIDES[each.side]} for each in outcome.wrong],
        "sides": [
            {
                "title": side.title,
                "pretrain": side.manifest["pretrain"],
                "torch": side.manifest["torch"],
                "kernels": side.manifest["kernels"],
            }
            for side in sides
        ],
        "wrong_in_both": [_found(each) for each in outcome.alike],
        "losses": [[side.loss(step) for side in sides] for step in range(1, sides[0].steps + 1)],
        "compared": [_found(each) for each in outcome.compared],
        "not_compared": list(outcome.skipped),
        "notes": list(outcome.notes),
    }


def _found(found: Compared | WrongCall | None) -> dict[str, Any]:
    if found is None:
        return {}
    values = {name: value for name, value in asdict(found).items() if name not in {"order", "place", "ticks"}}
    values = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }
    place = found.place
    return {
        "step": found.step,
        "phase": found.phase,
        "position": None if place is None else place.position,
        "module": None if place is None else place.module,
        **values,
    }
