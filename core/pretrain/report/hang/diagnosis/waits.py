"""Waits of ranks for each other: who is in a collective, and who of its group is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.plugins.collective_record import NO_PEER
from pretrain.report.hang.rank_state import group_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pretrain.plugins.collective_record import CalledCollective
    from pretrain.report.hang.rank_state import RankState


@dataclass(frozen=True, slots=True)
class Wait:
    """One collective or message that ranks wait in.

    Attributes:
        collective: as the lowest of those ranks has called it.
        ranks: that wait in it, ascending.
        missing: ranks of its group that have not called it, ascending.
    """

    collective: CalledCollective
    ranks: tuple[int, ...]
    missing: tuple[int, ...]


def waits_of(states: Mapping[int, RankState], silent: Collection[int]) -> list[Wait]:
    """Return all waits, those with the lowest ranks first.

    Args:
        states: of the ranks that have spoken.
        silent: ranks that have not; they count as missing wherever they belong.
    """
    together: dict[object, list[int]] = {}
    for rank, state in sorted(states.items()):
        if state.waits_in is not None:
            together.setdefault(_key(state.waits_in, rank), []).append(rank)
    return [_wait(ranks, states, silent) for ranks in together.values()]


def same_call(state: RankState, collective: CalledCollective) -> CalledCollective | None:
    """Return what a rank has called as the group's collective of that number; None if that is not known."""
    calls = (each for each in state.called if not each.is_message and group_of(each) == group_of(collective))
    return next((each for each in calls if each.number == collective.number), None)


def has_left(state: RankState, collective: CalledCollective) -> bool:
    """Say whether a rank waits in a later collective of the group, and not in this one beside it."""
    later = state.waits_in
    if later is None or later.is_message or group_of(later) != group_of(collective):
        return False
    call = same_call(state, collective)
    return later.number > collective.number and (call is None or not call.pending)


def _key(collective: CalledCollective, rank: int) -> object:
    if collective.is_message:
        return rank
    return group_of(collective), collective.number or collective.operation


def _wait(ranks: list[int], states: Mapping[int, RankState], silent: Collection[int]) -> Wait:
    collective = states[ranks[0]].waits_in
    assert collective is not None  # noqa: S101  as `waits_of` has collected them
    if collective.is_message:
        missing = [] if _answers(states, collective.peer, ranks[0]) else [collective.peer]
        return Wait(collective, tuple(ranks), tuple(rank for rank in missing if rank != NO_PEER))
    members = collective.ranks or tuple(sorted({*states, *silent}))
    missing = [rank for rank in members if rank not in ranks and not _has_called(states.get(rank), collective)]
    return Wait(collective, tuple(ranks), tuple(missing))


def _has_called(state: RankState | None, collective: CalledCollective) -> bool:
    if state is None or not collective.number:
        return False
    ours = (each for each in state.called if not each.is_message and group_of(each) == group_of(collective))
    return any(each.number >= collective.number for each in ours)


def _answers(states: Mapping[int, RankState], peer: int, rank: int) -> bool:
    """Say whether the peer of a message waits in a message with this rank too."""
    state = states.get(peer)
    waits_in = None if state is None else state.waits_in
    return waits_in is not None and waits_in.is_message and waits_in.peer == rank
