"""Ranks in words."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def rank_names(ranks: Iterable[int]) -> str:
    """Return ranks in words: "rank 3", "ranks 0, 2-5"."""
    ordered = sorted(ranks)
    return f"rank{'s' if len(ordered) > 1 else ''} {rank_numbers(ordered)}"


def rank_numbers(ranks: Iterable[int]) -> str:
    """Return the numbers of ranks, runs of three and more in short: "0, 2-5"."""
    placed = enumerate(sorted(ranks))
    runs = [[rank for _, rank in run] for _, run in groupby(placed, key=lambda pair: pair[1] - pair[0])]
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return ", ".join(parts)
