"""Options of the process groups: torch's defaults."""

from __future__ import annotations


def no_options(group_name: str) -> None:
    """A `ProcessGroupOptionsFn` that keeps torch's defaults for every group."""
