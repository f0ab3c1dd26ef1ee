"""Options of the process groups: torch's defaults."""

from __future__ import annotations


def no_options(group_name: str) -> None:
    """A `ProcessGroupOptionsFn` that leaves every group as torch makes it."""
