"""Seconds of a call, and the spread of several."""

from __future__ import annotations

import statistics
import time


def timed(do) -> float:
    """Return the seconds of a call."""
    start = time.perf_counter()
    do()
    return time.perf_counter() - start


def spread(values: list[float], digits: int = 4) -> dict[str, object]:
    """Return the median and all values, rounded."""
    return {"median": round(statistics.median(values), digits), "all": [round(value, digits) for value in values]}
