"""Options of `pretrain run` about restarts."""

from __future__ import annotations

from dataclasses import dataclass

from pretrain.errors import LaunchError


@dataclass(frozen=True, kw_only=True, slots=True)
class RestartPolicy:
    """Limits of restarts after a failure: their number, and that of the nodes.

    Attributes:
        limit: restarts in all, `--max-restarts`.
        fewest_nodes: nodes with which it goes on where others do not come back, `--allow-fewer-nodes`; None: it waits
            for all.
    """

    limit: int = 0
    fewest_nodes: int | None = None

    def __post_init__(self) -> None:
        if self.fewest_nodes is not None and not self.limit:
            msg = (
                f"--allow-fewer-nodes {self.fewest_nodes} is about restarts, of which there are none.\n"
                "Pass --max-restarts N as well, or leave it out."
            )
            raise LaunchError(msg)

    def require_nodes(self, count: int) -> None:
        """Check that fewer nodes are fewer than those of the run.

        Raises:
            LaunchError: they are not.
        """
        if self.fewest_nodes is not None and self.fewest_nodes >= count:
            msg = (
                f"--allow-fewer-nodes {self.fewest_nodes} is not below the number of nodes, {count}.\n"
                "It is the number with which the run still goes on: pass fewer, or leave it out."
            )
            raise LaunchError(msg)


NO_RESTARTS = RestartPolicy()
