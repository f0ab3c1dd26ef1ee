"""Text of a report: the sentences, what each rank is in, and in the file the stacks of all threads."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from pretrain.report.hang.diagnosis.group_words import collective_words
from pretrain.report.hang.diagnosis.sentences import diagnose
from pretrain.report.hang.diagnosis.state_words import doing, place, telling_frame
from pretrain.report.rank_names import rank_names

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pretrain.report.hang.process_state import RankProcess
    from pretrain.report.hang.rank_state import RankState

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
