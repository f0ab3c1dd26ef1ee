"""How a cost grows with the ranks, and what comes of that at sizes beyond this machine."""

from __future__ import annotations

from math import log, log2

BEYOND = (16_384, 100_000)


def growth(costs: dict[int, float]) -> dict[str, object]:
    """Return the growth of a cost by number of ranks, of which there are two or more.

    `exponent` is that of the power law through the two largest sizes, the slope of the log-log line. `of_n_log_n` is
    how much faster the cost grew from the smallest to the largest size than N log N does: 1 or less is at most that.
    `worked_out` are its values at the sizes of `BEYOND` by the power law, not by a measurement.
    """
    sizes = sorted(size for size, cost in costs.items() if cost > 0)
    if len(sizes) < 2:
        return {}
    least, before, last = sizes[0], sizes[-2], sizes[-1]
    exponent = log(costs[last] / costs[before]) / log(last / before)
    grown = costs[last] / costs[least] / (last * log2(last) / (least * log2(least)))
    worked_out = {size: _short(costs[last] * (size / last) ** exponent) for size in BEYOND if size > last}
    return {"exponent": round(exponent, 2), "of_n_log_n": _short(grown), "worked_out": worked_out}


def _short(value: float) -> float:
    return float(f"{value:.3g}")
