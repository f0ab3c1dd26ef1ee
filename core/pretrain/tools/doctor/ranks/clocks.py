"""Compares the nodes' clocks with rank 0's, as NTP does, over a store.

Source of the formula: RFC 5905, section 8 (offset and delay of four timestamps).
"""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrain.tools.doctor.finding import Finding, Verdict
from pretrain.tools.doctor.ranks.step import ExaminationStep, taking_part
from pretrain.tools.doctor.ranks.store_client import open_first, prefixed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pretrain.tools.doctor.ranks.status_board import StatusBoard
    from pretrain.tools.doctor.ranks.step import Answers


_QUESTIONS = 5
_MOST = 1.0
"""Seconds; logs of nodes cannot be compared beyond it, and a file may seem to come from the future."""


def offset_of(asked: float, received: float, answered: float, returned: float) -> tuple[float, float]:
    """Return by how many seconds the other clock is ahead, and the most by which that can be wrong.

    Args:
        asked: this clock, when the question was sent.
        received: the other clock, when it came.
        answered: the other clock, when the answer was sent.
        returned: this clock, when the answer came.
    """
    offset = ((received - asked) + (answered - returned)) / 2
    return offset, ((returned - asked) - (answered - received)) / 2


def ask_time(store: Any, rank: int, now: Callable[[], float] = time.time) -> list[float]:
    """Return offset and error, in seconds, of rank 0's clock; `answer_time` answers on rank 0.

    Args:
        store: a connection of this thread, in which a wait is no harm to others.
        rank: that asks.
        now: this rank's clock, seconds since the epoch.
    """
    found = []
    for number in range(_QUESTIONS):
        store.get(_key("turn", rank, number))
        asked = now()
        store.set(_key("question", rank, number), "")
        received, answered = json.loads(store.get(_key("answer", rank, number)))
        found.append(offset_of(asked, received, answered, now()))
    offset, error = min(found, key=lambda pair: pair[1])
    return [offset, error]


def answer_time(store: Any, ranks: Sequence[int], doing: Callable[[str], None]) -> None:
    """Answer the questions of the ranks, one after the other, on rank 0."""
    for rank in ranks:
        doing(f"compare clocks with rank {rank}")
        for number in range(_QUESTIONS):
            store.set(_key("turn", rank, number), "")
            store.get(_key("question", rank, number))
            received = time.time()
            store.set(_key("answer", rank, number), json.dumps([received, time.time()]))


def judge_clocks(answers: Mapping[int, Mapping[str, Any]]) -> list[Finding]:
    """Name the nodes whose clock is more than a second from rank 0's.

    Args:
        answers: of each rank that asked its "host" and "offset", which `ask_time` returned.
    """
    if not answers:
        return []
    far = [rank for rank, each in answers.items() if abs(each["offset"][0]) > _MOST]
    worst = max(answers, key=lambda rank: abs(answers[rank]["offset"][0]))
    value, error = answers[worst]["offset"]
    text = (
        f"rank {worst} (host {answers[worst]['host']}) is {abs(value):.3f} s {'behind' if value > 0 else 'ahead of'} "
        f"rank 0, known to {max(error, 1e-4):.4f} s"
    )
    if not far:
        return [Finding(check="clocks", verdict=Verdict.OK, text=f"{text}; {_others(len(answers))}")]
    remedy = "set the clocks by NTP (chronyd, systemd-timesyncd): logs and times of files cannot be compared"
    return [Finding(check="clocks", verdict=Verdict.LOOK, text=text, remedy=remedy, ranks=tuple(sorted(far)))]


def _others(count: int) -> str:
    return "no other node" if count == 1 else f"the other {count - 1} nodes less"


def _key(kind: str, rank: int, number: int) -> str:
    return f"clock/{kind}/{rank}/{number}"


@dataclass(frozen=True, slots=True)
class ClockStep(ExaminationStep):
    """Clocks of the nodes against rank 0's."""

    board: StatusBoard
    name = "clocks"

    def orders(self, known: Mapping[str, Answers]) -> Any:  # noqa: ARG002  it needs nothing
        """Return the first ranks of the nodes other than rank 0's; without any there is nothing to compare."""
        others = first_ranks(self.board)[1:]
        return {"ranks": others} if others else None

    def measure(self, orders: Any) -> Any:
        """Ask rank 0 for its time; on rank 0 answer."""
        rank = self.board.world.rank
        if rank not in {0, *orders["ranks"]}:
            return None
        self.board.doing("compare clocks with rank 0")
        store = prefixed(self.name, open_first(self.board.world, serves=False))
        if rank:
            return {"host": socket.gethostname(), "offset": ask_time(store, rank)}
        answer_time(store, orders["ranks"], self.board.doing)
        return None

    def judge(self, answers: Answers) -> list[Finding]:
        """Name the clocks that are far off."""
        return judge_clocks(taking_part(answers))


def nodes_of(board: StatusBoard) -> list[int]:
    """Return the node of every rank, all of which have come."""
    marks = board.marks(range(board.world.world_size))
    return [marks[rank].node for rank in sorted(marks)]


def first_ranks(board: StatusBoard) -> list[int]:
    """Return the first rank of every node."""
    nodes = nodes_of(board)
    return [nodes.index(node) for node in dict.fromkeys(nodes)]
