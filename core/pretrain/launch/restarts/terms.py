"""Words between the nodes of a run with restarts: what node 0 decides for an attempt, and that the run is over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pretrain.launch.processes.failure import Failure


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """Values that node 0 decides for an attempt.

    Attributes:
        run_dir: of the run, as all nodes see it.
        resume: whether its run is continued.
        holder: host and process that hold it: node 0's launcher.
    """

    run_dir: str
    resume: bool
    holder: tuple[str, int]


class NodesAbsent(Exception):  # noqa: N818  it may be followed by a restart, as the end of an attempt is
    """End of an attempt before it could begin: nodes have not come.

    Attributes:
        failure: that is judged as one of ranks.
        there: number of nodes that have come.
    """

    def __init__(self, failure: Failure, there: int) -> None:
        """Keep the reason."""
        super().__init__(str(failure))
        self.failure = failure
        self.there = there


class RunEnded(Exception):  # noqa: N818  it is no error where the run was asked to end
    """End of the run while this node was waiting.

    Attributes:
        failure: of the run, or why it has stopped; None if it is complete.
        of_loss: node 0 is gone, so that nothing is known of the run.
    """

    def __init__(self, failure: Failure | None, *, of_loss: bool = False) -> None:
        """Keep the reason."""
        super().__init__(str(failure))
        self.failure = failure
        self.of_loss = of_loss
