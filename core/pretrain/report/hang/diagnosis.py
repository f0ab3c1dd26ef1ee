"""Explains a hang from the ranks' states, and writes the report with it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pretrain.plugins.collective_record import NO_PEER
from pretrain.report.hang.rank_state import ALIVE, BLOCKED, ENDED, STOPPED, UNKNOWN, doing, own_frame, place
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

Key = TypeVar("Key")
Item = TypeVar("Item")

_MOST_LINES = 24  # lines about ranks on the terminal; the file has all
_MOST_SENTENCES = 8  # with a thousand ranks many groups wait for one
_BLOCKING = "gloo"
"""Library whose collectives the host waits in: with others it runs ahead of its device, and its place says little."""
_UNEVEN = {"all-to-all", "alltoall-base"}
_STALLED = "the network between them or a device is stalled"
_SILENT = {
    STOPPED: "stopped, by SIGSTOP or a debugger: `kill -CONT {pid}` resumes it",
    ENDED: "gone",
    BLOCKED: "in an uninterruptible wait: a file system or a driver does not answer",
    ALIVE: "alive, but its Python does not run: a library holds Python's lock (`py-spy dump --native --pid {pid}`)",
    UNKNOWN: "not visible from the other hosts: look at it there",
}
"""State of a process that does not answer -> words after "process N on host H is"."""


def report(head: str, states: Mapping[int, RankState], processes: Mapping[int, RankProcess], file: Path) -> str:
    """Return the report for the terminal: some lines, of which the last one names the file with all."""
    lines = _rank_lines(states)
    more = len(lines) - _MOST_LINES
    shown = [*lines[:_MOST_LINES], f"  and {more} more"] if more > 0 else lines
    return "\n".join([head, *_explained(states, processes), *shown, f"stacks of all threads: {file}"])


def full_report(head: str, states: Mapping[int, RankState], processes: Mapping[int, RankProcess]) -> str:
    """Return the report with every rank's line, and the stacks of all threads of all ranks."""
    parts = [head, *_explained(states, processes), *_rank_lines(states)]
    for rank, state in sorted(states.items()):
        parts.append(f"\nrank {rank}, process {state.pid} on {state.host}: {place(state)}")
        parts += [f"  {collective_words(each, with_shapes=True)}, pending" for each in state.called if each.pending]
        for stack in state.stacks:
            parts += [f"  thread {stack.thread}", *(f"    {frame}" for frame in stack.frames)]
    return "\n".join(parts) + "\n"


def _explained(states: Mapping[int, RankState], processes: Mapping[int, RankProcess]) -> list[str]:
    try:
        return diagnose(states, processes)
    except Exception as error:  # noqa: BLE001  the ranks' positions are worth more than their explanation
        return [f"the diagnosis failed: {error!r}"]


def _rank_lines(states: Mapping[int, RankState]) -> list[str]:
    """Return a line for each position, with the ranks that are there."""
    lines = []
    for words, those in _grouped((_line(state), state) for _, state in sorted(states.items())):
        least, most = min(state.seconds for state in those), max(state.seconds for state in those)
        seconds = f"{most:.0f}" if round(least) == round(most) else f"{least:.0f} to {most:.0f}"
        lines.append(f"  {rank_names(each.rank for each in those)}: {words}, for {seconds} s")
    return lines


def _line(state: RankState) -> str:
    if state.waits_in is None:
        return doing(state)
    waits = f"waits in {collective_words(state.waits_in, with_shapes=True)}"
    return "; ".join(filter(None, (place(state), waits, str(own_frame(state) or ""))))


def diagnose(states: Mapping[int, RankState], processes: Mapping[int, RankProcess]) -> list[str]:
    """Return why the ranks hang, the cause first; `states` of those that have answered, `processes` of all."""
    return _Diagnosis(states, processes).sentences()


@dataclass(frozen=True, slots=True)
class _Diagnosis:
    states: Mapping[int, RankState]
    processes: Mapping[int, RankProcess]

    def sentences(self) -> list[str]:
        silent = sorted(set(self.processes) - set(self.states))
        waits = waits_of(self.states, silent)
        waiting = {rank for wait in waits for rank in wait.ranks}
        causes = {rank for wait in waits for rank in wait.missing} - waiting
        if causes:
            return self._missing(waits, causes)
        found = [sentence for wait in waits if not wait.missing for sentence in self._complete(wait, waits)]
        found = found + self._deadlock(waits) or self._busy(waiting)
        return [*_limited(found), *(f"rank {rank} {self._silence(rank)}" for rank in silent)]

    def _missing(self, waits: Sequence[Wait], causes: set[int]) -> list[str]:
        """Return a sentence for each kind of collective that lacks ranks which wait for nobody; the others in one."""
        direct = [wait for wait in waits if causes.intersection(wait.missing)]
        rest = [wait for wait in waits if wait not in direct]
        sentences: list[str] = []
        named: set[int] = set()
        for alike in self._alike(direct):
            lacking = sorted(causes.intersection(rank for wait in alike for rank in wait.missing))
            new = [rank for rank in lacking if rank not in named]
            named.update(lacking)
            why = self._absent(new) if new else f"{rank_names(lacking)} {_verb(lacking, 'is', 'are')} not there either"
            sentences.append(f"{self._waiting(alike)}; {why}{self._divergence(alike[0], lacking)}")
        sentences = _limited(sentences)
        if rest:
            kinds = dict.fromkeys(collective_words(alike[0].collective) for alike in self._alike(rest))
            ranks = sorted(rank for wait in rest for rank in wait.ranks)
            verb = _verb(ranks, "waits", "wait")
            sentences.append(f"{rank_names(ranks)} {verb} for them in turn, in {', '.join(kinds)}")
        return sentences

    def _complete(self, wait: Wait, waits: Sequence[Wait]) -> list[str]:
        """Return the sentence about a collective that lacks no rank; none where it is said of its other rank."""
        collective, waiting = wait.collective, self._waiting([wait])
        if collective.is_message:
            return self._message(wait, waits)
        calls = self._calls(wait)
        if len(calls) > 1:
            parts = [f"{rank_names(ranks)}: {' '.join(call).rstrip()} ({self._places(ranks)})" for call, ranks in calls]
            what = "shapes" if len({operation for (operation, _), _ in calls}) == 1 else "collectives"
            return [f"the ranks of {group_words(collective)} call different {what} together: {'; '.join(parts)}"]
        if collective.library == _BLOCKING and len({place(self.states[rank]) for rank in wait.ranks}) > 1:
            return [f"{waiting}, at different places: one of them skipped a collective or called an extra one"]
        left = [rank for rank in collective.ranks if rank in self.states and has_left(self.states[rank], collective)]
        if left:
            verbs = _verb(left, "has left it and waits", "have left it and wait")
            later = f"{rank_names(left)} {verbs} in a later one for {rank_names(wait.ranks)}"
            return [f"{waiting}; {later}: {_STALLED}"]
        return [f"{waiting}, and all its ranks are there: {_STALLED}"]

    def _message(self, wait: Wait, waits: Sequence[Wait]) -> list[str]:
        rank, peer = wait.ranks[0], wait.collective.peer
        if peer == NO_PEER:
            return [f"{self._waiting([wait])}; the communication library does not say with which rank"]
        if peer < rank:
            return []
        both = "; ".join(self._waiting([each]) for each in waits if each.ranks[0] in {rank, peer})
        return [f"ranks {rank} and {peer} wait on each other with mismatched messages: {both}"]

    def _calls(self, wait: Wait) -> list[tuple[tuple[str, str], list[int]]]:
        """Return operation and shapes of a collective as its ranks have called it, each with these ranks.

        Without the shapes of an all-to-all, in which every rank sends other numbers of rows.
        """
        found = []
        for rank in wait.collective.ranks or wait.ranks:
            call = same_call(self.states[rank], wait.collective) if rank in self.states else None
            if call is not None:
                operation = operation_words(call)
                found.append(((operation, "" if operation in _UNEVEN else shape_words(call)), rank))
        return _grouped(found)

    def _deadlock(self, waits: Sequence[Wait]) -> list[str]:
        circle = circle_of(waits)
        if not circle:
            return []
        parts = ", ".join(f"{self._waiting([wait])} for {rank_names([rank])}" for wait, rank in circle)
        remark = next(filter(None, (self._divergence(wait, [rank]) for wait, rank in circle)), "")
        return [parts + (remark or ": a deadlock; they call collectives of different groups in different orders")]

    def _busy(self, waiting: set[int]) -> list[str]:
        found = _grouped((doing(state), rank) for rank, state in sorted(self.states.items()) if rank not in waiting)
        return [f"{rank_names(those)} {_verb(those, 'is', 'are')} in {words}" for words, those in found]

    def _alike(self, waits: Iterable[Wait]) -> list[list[Wait]]:
        """Return waits of one kind and place together: those of many groups for the ranks of one host."""
        keyed = (((wait.collective.operation, wait.collective.group, self._places(wait.ranks)), wait) for wait in waits)
        return [those for _, those in _grouped(keyed)]

    def _waiting(self, alike: Sequence[Wait]) -> str:
        """Return "ranks 3, 5 wait in all-reduce of group tp (layer 17 of 24, backward, iteration 812)"."""
        first = alike[0].collective
        ranks = [rank for wait in alike for rank in wait.ranks]
        words = collective_words(first) if len(alike) == 1 else f"{operation_words(first)} of {group_words(first)}"
        verb = _verb(ranks, "waits", "wait")
        return f"{rank_names(ranks)} {verb} in {words} ({self._places(alike[0].ranks)})"

    def _places(self, ranks: Iterable[int]) -> str:
        """Return the place of the ranks; where they are at several, each with its ranks."""
        places = _grouped((place(self.states[rank]), rank) for rank in ranks)
        if len(places) == 1:
            return places[0][0]
        return "; ".join(f"{rank_names(those)}: {words}" for words, those in places)

    def _divergence(self, wait: Wait, lacking: Iterable[int]) -> str:
        """Return a remark on ranks that are past the collective that others wait for them in; "" if there are none."""
        waiting = self.states[wait.ranks[0]]
        answered = [self.states[rank] for rank in lacking if rank in self.states]
        past = [each.rank for each in answered if not each.error and is_ahead(each, waiting)]
        if not past or wait.collective.is_message:
            return ""
        verbs = _verb(past, "is ahead: it", "are ahead: they")
        return f". {rank_names(past)} {verbs} skipped a collective of {group_words(wait.collective)}"

    def _absent(self, ranks: Sequence[int]) -> str:
        """Return "rank 4 is not there: it is in data loading, iteration 812; ..." for ranks that others wait for."""
        described = _grouped((self._absence(rank), rank) for rank in ranks)
        begin = f"{rank_names(ranks)} {_verb(ranks, 'is', 'are')} not there: "
        if len(described) > 1:
            return begin + "; ".join(f"{rank_numbers(those)}: it {words}" for words, those in described)
        words = described[0][0]
        return begin + (f"it {words}" if len(ranks) == 1 else f"each {words}")

    def _absence(self, rank: int) -> str:
        state = self.states.get(rank)
        if state is None:
            return self._silence(rank)
        if state.waits_in is not None and not state.error:
            return f"waits in {collective_words(state.waits_in)} ({place(state)})"
        return f"is in {doing(state)}"

    def _silence(self, rank: int) -> str:
        """Return what the ranks of its host know of a rank that has not answered."""
        process = self.processes.get(rank)
        if process is None:
            return "does not answer"
        seen = [state for state in self.states.values() if state.processes.get(rank)]
        known = seen[0].processes[rank] if seen else UNKNOWN
        words = f"does not answer; process {process.pid} on {process.host} is {_SILENT[known].format(pid=process.pid)}"
        last = next((state.last_seen[rank] for state in seen if rank in state.last_seen), "")
        return f"{words}; it was last in {last}" if last else words


def _grouped(pairs: Iterable[tuple[Key, Item]]) -> list[tuple[Key, list[Item]]]:
    found: dict[Key, list[Item]] = defaultdict(list)
    for key, item in pairs:
        found[key].append(item)
    return list(found.items())


def _limited(sentences: Sequence[str]) -> list[str]:
    more = len(sentences) - _MOST_SENTENCES
    return [*sentences[:_MOST_SENTENCES], f"and {more} more like these"] if more > 0 else list(sentences)


def _verb(ranks: Sequence[int], one: str, several: str) -> str:
    return one if len(ranks) == 1 else several
