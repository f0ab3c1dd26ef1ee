"""A circle of ranks that wait for each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.report.hang.diagnosis.waits import Wait


def circle_of(waits: Sequence[Wait]) -> list[tuple[Wait, int]]:
    """Return waits, each with the rank that it lacks and that is in the next one, the last back in the first.

    Empty where no ranks wait for each other.
    """
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
