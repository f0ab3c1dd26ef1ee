"""Keys of the store of the rendezvous."""

from __future__ import annotations

LAUNCHER, STOP, FAILURE, READ, GONE = "launcher", "stop", "failure", "read", "gone"
REPORTS, STOPPED, TOLD = "reports", "stopped", "told"
"""Keys of the store: the launcher of a hostfile has joined; its stop request; the failure that says most about the end
so far; the launcher has read one; how many have left; how many times SIGUSR1 has asked for a report of all ranks; why
the ranks have stopped without a failure; the failure of a rank that writes a checkpoint before it ends, which ends no
other one."""


def taken_key(node: int) -> str:
    """Return the key that says that a node has come."""
    return f"taken/{node}"


def ended_key(node: int) -> str:
    """Return the key of a node's exit code."""
    return f"ended/{node}"
