"""Watch over ranks: those whose marks no longer change."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.tools.doctor.finding import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pretrain.tools.doctor.ranks.board import Board, Mark

_PERIOD = 0.5


@dataclass(frozen=True, slots=True)
class _Seen:
    mark: Mark | None
    when: float


class Watch:
    """Watch over the marks of ranks."""

    def __init__(self, board: Board) -> None:
        """Begin now: a rank that never writes is silent `timeout` seconds from now."""
        self._board = board
        self._begun = time.monotonic()
        self._looked = 0.0
        self._seen: dict[int, _Seen] = {}

    def look(self, ranks: Iterable[int], *, at_once: bool = False) -> None:
        """Read the marks of the ranks, at most twice a second unless `at_once`."""
        now = time.monotonic()
        if not at_once and now - self._looked < _PERIOD:
            return
        self._looked = now
        wanted = list(ranks)
        marks = self._board.marks(wanted)
        for rank in wanted:
            before = self._seen.get(rank, _Seen(None, self._begun))
            mark = marks.get(rank)
            self._seen[rank] = _Seen(mark, now) if mark is not None and mark != before.mark else before

    def renew(self, rank: int) -> None:
        """Count the silence of a rank from now."""
        self._seen[rank] = _Seen(self._of(rank).mark, time.monotonic())

    def silent(self, ranks: Iterable[int]) -> list[int]:
        """Return those of the ranks whose marks have not changed for the board's `timeout`."""
        limit = time.monotonic() - self._board.timeout
        return [rank for rank in ranks if self._of(rank).when < limit]

    def unchanged_since(self, when: float, ranks: Iterable[int]) -> list[int]:
        """Return those of the ranks whose marks have not changed since a time of `time.monotonic`."""
        return [rank for rank in ranks if self._of(rank).when <= when]

    def describe(self, rank: int) -> Finding:
        """Return the finding about a silent rank: its host, process and what it did last."""
        world, timeout, mark = self._board.world, self._board.timeout, self._of(rank).mark
        if mark is None:
            return Finding(
                check="ranks",
                verdict=Verdict.WRONG,
                text=f"rank {rank} of {world.world_size} did not come to {world.master_addr}:{world.master_port} "
                f"within {timeout:g} s",
                remedy="look at its node: was the command given there, did it end with an error, does that address "
                "lead from it to rank 0?",
                ranks=(rank,),
            )
        return Finding(
            check="ranks",
            verdict=Verdict.WRONG,
            text=f"rank {rank} (host {mark.host}, process {mark.pid}) did not answer within {timeout:g} s; "
            f"its last: {mark.doing}",
            remedy="look at that process there: `ps` shows a stopped one as T, `py-spy dump --pid` where one hangs",
            ranks=(rank,),
        )

    def _of(self, rank: int) -> _Seen:
        return self._seen.get(rank, _Seen(None, self._begun))
