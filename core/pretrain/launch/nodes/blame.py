"""Failures that each node of a run has caused: one that caused two is left out, where another can take its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.launch.nodes.attempt import Arrival
    from pretrain.launch.processes.failure import Failure

_MOST = 2
"""Failures after which a node is left out."""


class Blame:
    """Counts failures by node: by its host, or where nodes share one by its launcher."""

    def __init__(self, counts: dict[str, int] | None = None, left_out: Sequence[str] = ()) -> None:
        self._counts = dict(counts or {})
        self.left_out = list(left_out)  # launchers; the command given again on their nodes is a new one, without blame

    def state(self) -> dict[str, Any]:
        """Return its arguments."""
        return {"counts": self._counts, "left_out": self.left_out}

    def count(
        self, failure: Failure, members: Sequence[Arrival], *, can_replace: bool, kept: str = ""
    ) -> tuple[str, bool]:
        """Count a failure; return a sentence about its node, "" for none, and whether that is left out from now on."""
        # The node of the launcher `kept`, which serves the store, cannot be.
        place = culprit(failure, members)
        if place is None:
            return "", False
        node = members[place]
        shared = sum(other.host == node.host for other in members) > 1
        name = node.launcher if shared else node.host
        times = self._counts[name] = self._counts.get(name, 0) + 1
        if times < _MOST:
            return "", False
        text = f"Node {place} ({node.host}) has caused {times} failures"
        if not can_replace or node.launcher == kept:
            return f"{text}; no other node can take its place.", False
        del self._counts[name]
        self.left_out.append(node.launcher)
        return f"{text} and is left out from now on.", True


def culprit(failure: Failure, members: Sequence[Arrival]) -> int | None:
    """Return the place of the node that caused a failure; None: a user, a stop, or a report that names ranks itself."""
    if failure.asked or failure.stopped or failure.lost_peer or (failure.expected and not failure.passing):
        return None
    if failure.place is not None or failure.of_launcher:
        return failure.place if failure.place is not None and failure.place < len(members) else None
    ranks = [place for place, node in enumerate(members) for _ in range(node.ranks)]
    return ranks[failure.rank] if failure.rank < len(ranks) else None
