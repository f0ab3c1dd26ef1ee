"""Ranks that others wait for, in words."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from pretrain.report.hang.diagnosis.group_words import collective_words
from pretrain.report.hang.diagnosis.state_words import doing, place
from pretrain.report.hang.process_state import ALIVE, BLOCKED, ENDED, STOPPED, UNKNOWN
from pretrain.report.rank_names import rank_names, rank_numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pretrain.report.hang.process_state import RankProcess
    from pretrain.report.hang.rank_state import RankState

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
