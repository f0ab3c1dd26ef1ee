"""Numbers of a plan in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pretrain.tools.plan.time.step_time import Range

GIB = 2**30
MIB = 2**20
DIGITS = 3
"""Significant digits of an estimate."""


def gib(size: float, decimals: int | None = None) -> str:
    """Return bytes in GiB, without the unit: "47.3", "0.420"; by default with the decimals of the size itself."""
    if decimals is None:
        decimals = decimals_of(size) if size else 0
    return f"{size / GIB:.{decimals}f}"


def decimals_of(size: float) -> int:
    """Return the decimals with which a size in GiB has about three digits."""
    return 1 if size >= 10 * GIB else 2 if size >= GIB else 3


def count(value: float) -> str:
    """Return a large number: "2.8 G", "604 M", "12288"."""
    for size, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.3g} {suffix}"
    return f"{value:.0f}"


def figure(value: float) -> str:
    """Return a number with `DIGITS` significant digits and no exponent: "63,400", "4.51", "0.00712"."""
    if value == 0:
        return "0"
    decimals = DIGITS - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, decimals)
    return f"{rounded:,.{max(0, decimals)}f}"


def span(values: Range, scale: float = 1.0) -> str:
    """Return a range: "38.1 to 61.4"; one number if both ends read the same.

    Args:
        values: what is estimated.
        scale: factor of both ends, 100 for a percentage.
    """
    low, high = figure(values.low * scale), figure(values.high * scale)
    return low if low == high else f"{low} to {high}"


def size_text(size: int | None) -> str:
    """Return a device's memory: "80 GiB", "79.3 GiB", "memory not known"."""
    if size is None:
        return "memory not known"
    return f"{size // GIB} GiB" if size % GIB == 0 else f"{gib(size)} GiB"
