"""Text of a report: the sentences, what each rank is in, and in the file the stacks of all threads."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from pretrain.plugins.collective_record import NO_PEER
from pretrain.report.hang.rank_state import ALIVE, BLOCKED, ENDED, STOPPED, UNKNOWN, doing, place, telling_frame
from pretrain.report.hang.waits import (
    circle_of,
    collective_words,
    group_words,
    has_left,
    is_ahead,
    operation_words,
    same_call,
    shape_words,
    waits_of,
)
from pretrain.report.plain_text import rank_names, rank_numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pretrain.report.hang.rank_state import RankProcess, RankState
    from pretrain.report.hang.waits import Wait


_MOST_LINES = 24
"""Lines about ranks on the terminal; the file has all."""


def report(head: str, states: Mapping[int, RankState], processes: Mapping[int, RankProcess], file: Path) -> str:
    """Return the report for the terminal: some lines, of which the last one names the file with all."""
    lines = rank_lines(states)
    more = len(lines) - _MOST_LINES
    shown = [*lines[:_MOST_LINES], f"  and {more} more"] if more > 0 else lines
    return "\n".join([head, *_sentences(states, processes), *shown, f"stacks of all threads: {file}"])


def full_report(head: str, states: Mapping[int, RankState], processes: Mapping[int, RankProcess]) -> str:
    """Return the report with every rank's line, and the stacks of all threads of all ranks."""
    parts = [head, *_sentences(states, processes), *rank_lines(states)]
    for rank, state in sorted(states.items()):
        parts.append(f"\nrank {rank}, process {state.pid} on {state.host}: {place(state)}")
        parts += [f"  {collective_words(each, with_shapes=True)}, not ended" for each in state.called if each.pending]
        for stack in state.stacks:
            parts += [f"  thread {stack.thread}", *(f"    {frame}" for frame in stack.frames)]
    return "\n".join(parts) + "\n"


def _sentences(states: Mapping[int, RankState], processes: Mapping[int, RankProcess]) -> list[str]:
    try:
        return diagnose(states, processes)
    except Exception as error:  # noqa: BLE001  what the ranks are in is worth more than its reason
        return [f"no conclusion could be drawn from it: {error!r}"]


def rank_lines(states: Mapping[int, RankState]) -> list[str]:
    """Return a line for each thing that ranks are in."""
    found: dict[str, list[RankState]] = defaultdict(list)
    for _, state in sorted(states.items()):
        found[_line(state)].append(state)
    return [
        f"  {rank_names(state.rank for state in those)}: {words}, for {_seconds(those)} s"
        for words, those in found.items()
    ]


def _line(state: RankState) -> str:
    if state.waits_in is None:
        return doing(state)
    waits = f"waits in {collective_words(state.waits_in, with_shapes=True)}"
    return "; ".join(filter(None, (place(state), waits, str(telling_frame(state) or ""))))


def _seconds(states: list[RankState]) -> str:
    least, most = min(state.seconds for state in states), max(state.seconds for state in states)
    return f"{most:.0f}" if round(least) == round(most) else f"{least:.0f} to {most:.0f}"


_MOST = 8
"""Sentences; with a thousand ranks many groups wait for one."""


def diagnose(states: Mapping[int, RankState], processes: Mapping[int, RankProcess]) -> list[str]:
    """Return the sentences, the cause first.

    Args:
        states: of the ranks that have spoken, at least one.
        processes: of all ranks.
    """
    silent = sorted(set(processes) - set(states))
    waits = waits_of(states, silent)
    waiting = {rank for wait in waits for rank in wait.ranks}
    causes = {rank for wait in waits for rank in wait.missing} - waiting
    if causes:
        return _of_causes(waits, causes, states, processes)
    sentences = [_of_complete(wait, states) for wait in waits if not wait.missing]
    sentences += _of_circle(waits, states)
    if not sentences:
        sentences = _of_busy((rank for rank in sorted(states) if rank not in waiting), states)
    return [*_limited(sentences), *(f"rank {rank}: {silence(rank, states, processes)}" for rank in silent)]


def _of_causes(
    waits: Sequence[Wait],
    causes: set[int],
    states: Mapping[int, RankState],
    processes: Mapping[int, RankProcess],
) -> list[str]:
    """Return a sentence for each kind of collective that lacks ranks which wait for nobody; the others in one more."""
    direct = [wait for wait in waits if causes.intersection(wait.missing)]
    sentences: list[str] = []
    named: set[int] = set()
    for group in _alike(direct, states):
        lacking = sorted(causes.intersection(rank for wait in group for rank in wait.missing))
        new = [rank for rank in lacking if rank not in named]
        named.update(lacking)
        why = absent(new, states, processes) if new else f"{rank_names(lacking)} {_are(lacking)} not there either"
        sentences.append(f"{_waiting(group, states)}; {why}{_divergence(group, lacking, states)}")
    rest = [wait for wait in waits if wait not in direct]
    if rest:
        kinds = dict.fromkeys(collective_words(group[0].collective) for group in _alike(rest, states))
        ranks = sorted(rank for wait in rest for rank in wait.ranks)
        sentences = [*_limited(sentences), f"{rank_names(ranks)} {_wait_for(ranks)} those in turn: {', '.join(kinds)}"]
    return _limited(sentences)


def _alike(waits: Iterable[Wait], states: Mapping[int, RankState]) -> list[list[Wait]]:
    """Return waits of one kind and place together: those of many groups for the ranks of one host."""
    found: dict[object, list[Wait]] = defaultdict(list)
    for wait in waits:
        collective = wait.collective
        found[collective.operation, collective.group, _places(wait.ranks, states)].append(wait)
    return list(found.values())


def _waiting(group: Sequence[Wait], states: Mapping[int, RankState]) -> str:
    """Return "ranks 3, 5 wait in all-reduce of group tp (layer 17 of 24, backward, iteration 812)"."""
    first = group[0].collective
    ranks = [rank for wait in group for rank in wait.ranks]
    words = collective_words(first) if len(group) == 1 else f"{operation_words(first)} of {group_words(first)}"
    return f"{rank_names(ranks)} {_wait_in(ranks)} {words} ({_places(group[0].ranks, states)})"


def _places(ranks: Iterable[int], states: Mapping[int, RankState]) -> str:
    """Return the place of the ranks; where they are at several, each with its ranks."""
    places: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        places[place(states[rank])].append(rank)
    if len(places) == 1:
        return next(iter(places))
    return "; ".join(f"{rank_names(those)}: {words}" for words, those in places.items())


def _divergence(group: Sequence[Wait], lacking: Iterable[int], states: Mapping[int, RankState]) -> str:
    """Return a remark where a rank is past the collective that others wait for it in; else an empty string."""
    waiting = group[0].ranks[0]
    spoken = [states[rank] for rank in lacking if rank in states]
    past = [each.rank for each in spoken if not each.error and is_ahead(each, states[waiting])]
    if not past or group[0].collective.is_message:
        return ""
    words = "further on, and has" if len(past) == 1 else "further on, and have"
    return f". {rank_names(past)} {_are(past)} {words} left out a collective of {group_words(group[0].collective)}"


def _of_complete(wait: Wait, states: Mapping[int, RankState]) -> str:
    """Return the sentence about a collective that all ranks of its group have called."""
    collective = wait.collective
    if collective.is_message and collective.peer == NO_PEER:
        return f"{_waiting([wait], states)}; the communication library does not say with which rank"
    if collective.is_message:
        return f"{_waiting([wait], states)}, and that rank in one with it: they do not wait for the same message"
    calls: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank in collective.ranks or wait.ranks:
        call = same_call(states[rank], collective) if rank in states else None
        if call is not None:
            calls[operation_words(call), shape_words(call)].append(rank)
    if len(calls) > 1:
        parts = (
            f"{rank_names(ranks)}: {operation} {shapes} ({_places(ranks, states)})"
            for (operation, shapes), ranks in calls.items()
        )
        what = "shapes" if len({operation for operation, _ in calls}) == 1 else "collectives"
        return f"the ranks of {group_words(collective)} call different {what} together: {'; '.join(parts)}"
    words, network = _waiting([wait], states), "the network between them, or a device, does not get on"
    if collective.library == _BLOCKING and len({place(states[rank]) for rank in wait.ranks}) > 1:
        return f"{words}, at different places: one of them has left out a collective, or called one more"
    if further := [rank for rank in collective.ranks if rank in states and has_left(states[rank], collective)]:
        have = "has left it and waits" if len(further) == 1 else "have left it and wait"
        return f"{words}; {rank_names(further)} {have} in a later one for {rank_names(wait.ranks)}: {network}"
    return f"{words}, and all its ranks are there: {network}"


_BLOCKING = "gloo"
"""Library whose collectives the host waits in: with others it runs ahead of its device, and its place says little."""


def _of_circle(waits: Sequence[Wait], states: Mapping[int, RankState]) -> list[str]:
    """Return the sentence about ranks that wait for each other in different collectives."""
    circle = circle_of(waits)
    if not circle:
        return []
    parts = [f"{_waiting([wait], states)} for {rank_names([rank])}" for wait, rank in circle]
    for wait, rank in circle:
        if remark := _divergence([wait], [rank], states):
            return [", ".join(parts) + remark]
    return [", ".join(parts) + ": a deadlock; they call collectives of different groups in different orders"]


def _of_busy(ranks: Iterable[int], states: Mapping[int, RankState]) -> list[str]:
    """Return a sentence for each thing that ranks do which wait in no collective."""
    found: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        found[doing(states[rank])].append(rank)
    return [f"{rank_names(those)} {_are(those)} in {words}" for words, those in found.items()]


def _limited(sentences: Sequence[str]) -> list[str]:
    more = len(sentences) - _MOST
    return [*sentences[:_MOST], f"and {more} more of the kind"] if more > 0 else list(sentences)


def _are(ranks: Sequence[int]) -> str:
    return "is" if len(ranks) == 1 else "are"


def _wait_in(ranks: Sequence[int]) -> str:
    return "waits in" if len(ranks) == 1 else "wait in"


def _wait_for(ranks: Sequence[int]) -> str:
    return "waits for" if len(ranks) == 1 else "wait for"


_SILENT = {
    STOPPED: "stopped, by SIGSTOP or a debugger: `kill -CONT {pid}` lets it go on",
    ENDED: "gone",
    BLOCKED: "in an uninterruptible wait: a file system or a driver does not answer",
    ALIVE: "alive, but its Python does not run: a library holds Python's lock (`py-spy dump --native --pid {pid}`)",
    UNKNOWN: "not to be seen from the other hosts: look at it there",
}
"""State of a process that says nothing -> words that follow "process N on host H is"."""


def absent(ranks: Iterable[int], states: Mapping[int, RankState], processes: Mapping[int, RankProcess]) -> str:
    """Return "rank 4 is not there: it is in data loading, iteration 812; ..." for ranks that others wait for.

    Args:
        ranks: that are missing in a collective.
        states: of the ranks that have spoken.
        processes: of all ranks.
    """
    missing = sorted(ranks)
    described: dict[str, list[int]] = defaultdict(list)
    for rank in missing:
        described[_words(rank, states, processes)].append(rank)
    verb = "is" if len(missing) == 1 else "are"
    begin = f"{rank_names(missing)} {verb} not there: "
    if len(described) == 1:
        words = next(iter(described))
        return begin + (
            words if len(missing) == 1 else words.replace("it is", "they are", 1).replace("its", "their", 1)
        )
    return begin + "; ".join(f"{rank_numbers(those)}: {words}" for words, those in described.items())


def _words(rank: int, states: Mapping[int, RankState], processes: Mapping[int, RankProcess]) -> str:
    state = states.get(rank)
    if state is None:
        return silence(rank, states, processes)
    if state.waits_in is not None and not state.error:
        return f"it waits in {collective_words(state.waits_in)} ({place(state)})"
    return f"it is in {doing(state)}"


def silence(rank: int, states: Mapping[int, RankState], processes: Mapping[int, RankProcess]) -> str:
    """Return what is known of a rank that has said nothing, by the ranks of its host."""
    process = processes.get(rank)
    if process is None:
        return "it says nothing"
    seen = [state for state in states.values() if state.processes.get(rank)]
    known = seen[0].processes[rank] if seen else UNKNOWN
    words = f"it says nothing; process {process.pid} on {process.host} is {_SILENT[known].format(pid=process.pid)}"
    last = next((state.last_seen[rank] for state in seen if rank in state.last_seen), "")
    return f"{words}; it was last in {last}" if last else words
