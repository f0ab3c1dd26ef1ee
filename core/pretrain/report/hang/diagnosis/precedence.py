"""Order of two ranks in the training, where it can be told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.report.hang import position

if TYPE_CHECKING:
    from pretrain.report.hang.rank_state import RankState

_IN_STEP = {"data", position.STEP, position.FORWARD_BACKWARD}
_LATER = {position.REDUCTION: 1, "optimizer": 2}
"""Phases of a step after the micro-batches -> their order; all else comes after the step."""


def is_ahead(state: RankState, other: RankState) -> bool:
    """Say whether a rank is certainly further on than another one, of the same stage or in another phase."""
    phases = _phase(state), _phase(other)
    if phases[0] != phases[1]:
        return phases[0] > phases[1]
    if not (state.direction and other.direction and state.micro_batch == other.micro_batch):
        return False
    return _place(state) > _place(other)


def _phase(state: RankState) -> tuple[int, int]:
    if state.activity in _IN_STEP:
        return state.iteration, 0
    return state.iteration, _LATER.get(state.activity, len(_LATER) + 1)


def _place(state: RankState) -> int:
    """Return the place in one micro-batch, forward and back: embedding, layers, output layer, layers, embedding."""
    depth = state.layers + 1 if state.part == position.OUTPUT else state.layer
    return depth if state.direction == position.FORWARD else 2 * (state.layers + 1) - depth + 1
