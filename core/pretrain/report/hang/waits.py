"""Which ranks wait for which in a collective, which is ahead, and names of collectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.plugins.collective_record import NO_PEER
from pretrain.report.hang.position import FORWARD, FORWARD_BACKWARD, OUTPUT, REDUCTION, STEP
from pretrain.report.hang.rank_state import group_of
from pretrain.report.plain_text import rank_names

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pretrain.plugins.collective_record import CalledCollective
    from pretrain.report.hang.rank_state import RankState


@dataclass(frozen=True, slots=True)
class Wait:
    """A collective or message in which `ranks` wait; `missing` ones of its group have not called it. Both ascend."""

    collective: CalledCollective  # as the lowest of those ranks has called it
    ranks: tuple[int, ...]
    missing: tuple[int, ...]


def waits_of(states: Mapping[int, RankState], silent: Collection[int]) -> list[Wait]:
    """Return all waits, those with the lowest ranks first; `silent` ranks count as missing wherever they belong."""
    together: dict[object, list[int]] = {}
    for rank, state in sorted(states.items()):
        if (call := state.waits_in) is not None:
            key = rank if call.is_message else (group_of(call), call.number or call.operation)
            together.setdefault(key, []).append(rank)
    return [_wait(ranks, states, silent) for ranks in together.values()]


def same_call(state: RankState, collective: CalledCollective) -> CalledCollective | None:
    """Return what a rank has called as the group's collective of that number; None if that is not known."""
    calls = (each for each in state.called if not each.is_message and group_of(each) == group_of(collective))
    return next((each for each in calls if each.number == collective.number), None)


def has_left(state: RankState, collective: CalledCollective) -> bool:
    """Return whether a rank has finished a collective and waits in a later one of the group."""
    later = state.waits_in
    if later is None or later.is_message or group_of(later) != group_of(collective):
        return False
    call = same_call(state, collective)
    return later.number > collective.number and (call is None or not call.pending)


def _wait(ranks: list[int], states: Mapping[int, RankState], silent: Collection[int]) -> Wait:
    collective = states[ranks[0]].waits_in
    assert collective is not None  # noqa: S101  as `waits_of` has collected them
    if collective.is_message:
        peer = states.get(collective.peer)
        call = None if peer is None else peer.waits_in
        answers = call is not None and call.is_message and call.peer == ranks[0]
        return Wait(collective, tuple(ranks), () if answers or collective.peer == NO_PEER else (collective.peer,))
    members = collective.ranks or tuple(sorted({*states, *silent}))
    missing = [rank for rank in members if rank not in ranks and not _has_called(states.get(rank), collective)]
    return Wait(collective, tuple(ranks), tuple(missing))


def _has_called(state: RankState | None, collective: CalledCollective) -> bool:
    if state is None or not collective.number:
        return False
    ours = (each for each in state.called if not each.is_message and group_of(each) == group_of(collective))
    return any(each.number >= collective.number for each in ours)


def circle_of(waits: Sequence[Wait]) -> list[tuple[Wait, int]]:
    """Return waits in a circle, each with the rank that it lacks and that is in the next; empty if there is none."""
    wait_of = {rank: wait for wait in waits for rank in wait.ranks}
    for start in wait_of:
        path: list[tuple[Wait, int]] = []
        seen: list[Wait] = []
        rank = start
        while rank in wait_of and wait_of[rank].missing:
            wait = wait_of[rank]
            if wait in seen:
                return path[seen.index(wait) :]
            seen.append(wait)
            rank = next((each for each in wait.missing if each in wait_of), wait.missing[0])
            path.append((wait, rank))
    return []


_IN_STEP = {"data", STEP, FORWARD_BACKWARD}
_LATER = {REDUCTION: 1, "optimizer": 2}
"""Phases of a step after the micro-batches -> their order; all else comes after the step."""


def is_ahead(state: RankState, other: RankState) -> bool:
    """Return whether a rank is certainly ahead of another one, of the same stage or in another phase."""
    phases = _phase(state), _phase(other)
    if phases[0] != phases[1]:
        return phases[0] > phases[1]
    if not (state.at.direction and other.at.direction and state.at.micro_batch == other.at.micro_batch):
        return False
    return _place(state) > _place(other)


def _phase(state: RankState) -> tuple[int, int]:
    if state.at.activity in _IN_STEP:
        return state.at.iteration, 0
    return state.at.iteration, _LATER.get(state.at.activity, len(_LATER) + 1)


def _place(state: RankState) -> int:
    """Return the place in one micro-batch, forward and back: embedding, layers, output layer, layers, embedding."""
    depth = state.layers + 1 if state.at.part == OUTPUT else state.at.layer
    return depth if state.at.direction == FORWARD else 2 * (state.layers + 1) - depth + 1


_WORDS = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "DATA_PARALLEL_GROUP": "dp",
    "DATA_PARALLEL_GROUP_WITH_CP": "dp",
    "DATA_PARALLEL_GROUP_GLOO": "dp (host)",
    "DATA_PARALLEL_GROUP_WITH_CP_GLOO": "dp (host)",
    "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP": "dp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "MODEL_PARALLEL_GROUP": "tp x pp",
    "TENSOR_AND_DATA_PARALLEL_GROUP": "tp x dp",
    "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": "tp x dp",
    "TENSOR_AND_CONTEXT_PARALLEL_GROUP": "tp x cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_TENSOR_PARALLEL_GROUP": "etp",
    "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": "etp x ep",
    "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP": "etp x ep x pp",
    "EXPERT_DATA_PARALLEL_GROUP": "edp",
    "EXPERT_DATA_PARALLEL_GROUP_GLOO": "edp (host)",
    "EMBEDDING_GROUP": "embedding",
    "POSITION_EMBEDDING_GROUP": "position embedding",
}
"""megatron-core's descriptions of its groups -> ours. Others stay as they are."""

_NAMELESS = {"", "default_pg", "undefined"}
"""torch's descriptions of the world's group, and of one that was made without a description."""


def group_words(collective: CalledCollective) -> str:
    """Return "group tp", or the ranks where the group has no description."""
    if collective.group == "default_pg":
        return "all ranks"
    if collective.group in _NAMELESS:
        return f"a group of {rank_names(collective.ranks)}" if collective.ranks else "a group without a name"
    return f"group {_WORDS.get(collective.group, collective.group)}"


def operation_words(collective: CalledCollective) -> str:
    """Return "all-reduce", or a message in megatron-core's name for it."""
    operation = collective.operation or "a collective"
    return operation if "forward" in operation or "backward" in operation else operation.replace("_", "-")


def collective_words(collective: CalledCollective, *, with_shapes: bool = False) -> str:
    """Return "all-reduce of group tp", with the shapes "all-reduce of group tp [4, 256] float32"."""
    words = f"{operation_words(collective)} of {group_words(collective)}"
    if collective.is_message and collective.peer != NO_PEER:
        words = f"{operation_words(collective)} with rank {collective.peer} ({group_words(collective)})"
    return f"{words} {shape_words(collective)}".rstrip() if with_shapes else words


def shape_words(collective: CalledCollective) -> str:
    """Return "[4, 256] float32", at most two shapes; empty for a barrier."""
    shapes = [str(list(shape)) for shape in collective.shapes[:2]]
    more = ["..."] if len(collective.shapes) > 2 else []
    return " ".join([*shapes, *more, collective.dtype]).strip()
