"""The place of a rank in words."""

from __future__ import annotations

from typing import Protocol

from pretrain.report.hang import position

_ACTIVITIES = {
    position.START: "starting",
    position.LOAD: "loading a checkpoint",
    position.BETWEEN: "between two steps",
    position.STEP: "its step",
    position.FORWARD_BACKWARD: "its step",
    position.LOG: "logging",
    position.GENERATE: "generation",
    position.REDUCTION: "gradient reduction",
    position.END: "the end of the training",
    "data": "data loading",
    "optimizer": "the optimizer",
    "evaluation": "the evaluation",
    "save": "saving",
}
"""Activities of a position -> words that follow "it is in"."""


class Placed(Protocol):
    """A place in the training: a rank's position, or the state that it has told."""

    @property
    def iteration(self) -> int: ...  # noqa: D102  see `pretrain.report.hang.position.Position`
    @property
    def layer(self) -> int: ...  # noqa: D102
    @property
    def part(self) -> str: ...  # noqa: D102
    @property
    def direction(self) -> str: ...  # noqa: D102
    @property
    def activity(self) -> str: ...  # noqa: D102


def place_of(placed: Placed, layers: int) -> str:
    """Return "layer 7 of 12, backward, iteration 812", or the activity outside of the model.

    Args:
        placed: the position.
        layers: of the model; 0 where they are not known.
    """
    return ", ".join(filter(None, (_spot(placed, layers), _iteration(placed))))


def _spot(placed: Placed, layers: int) -> str:
    words = _ACTIVITIES.get(placed.activity, placed.activity)
    if placed.activity not in {position.FORWARD_BACKWARD, position.STEP, "evaluation", position.GENERATE}:
        return words
    of = f" of {layers}" if layers else ""
    where = f"layer {placed.layer}{of}" if placed.layer else placed.part
    inner = ", ".join(filter(None, (where, placed.direction)))
    if where and placed.activity in {position.FORWARD_BACKWARD, position.STEP}:
        return inner
    return ", ".join(filter(None, (words, inner)))


def _iteration(placed: Placed) -> str:
    return f"iteration {placed.iteration}" if placed.iteration else ""
