"""Axes of a chart: positions of numbers, and ticks."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of numbers drawn from pixel `start` to pixel `end`.

    Attributes:
        low: the number at `start`.
        high: the number at `end`, above `low`.
        logarithmic: logarithmic scale; `low` must be positive.
    """

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """Return the pixel of a number."""
        low, high, value = (self._scaled(number) for number in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return round numbers within the range, three or more."""
        return self._powers() if self.logarithmic else self._linear()

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.logarithmic else value

    def _powers(self) -> list[float]:
        exponents = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
        if len(exponents) >= 3:
            return [10.0**exponent for exponent in exponents][:: max(1, len(exponents) // 6)]
        finer = (factor * 10.0**power for power in range(exponents.start - 1, exponents.stop) for factor in (1, 2, 5))
        return [tick for tick in finer if self.low <= tick <= self.high]

    def _linear(self) -> list[float]:
        step = _round_step((self.high - self.low) / 6)
        first = math.ceil(self.low / step - 1e-9)
        return [index * step for index in range(first, math.floor(self.high / step + 1e-9) + 1)]


def covering(values: list[float], start: float, end: float, *, logarithmic: bool = False, margin: float = 0.05) -> Axis:
    """Return an axis on which all values lie, with some room on both sides."""
    low, high = min(values), max(values)
    if logarithmic and low > 0 and high / low > 30:
        room = (high / low) ** margin
        return Axis(low / room, high * room, start, end, logarithmic=True)
    room = (high - low) * margin or abs(high) * margin or 1.0 if margin or high == low else 0.0
    return Axis(low - room, high + room, start, end)


def label(value: float) -> str:
    """Return the label of a tick: 1500, 0.25, 12M, 3e-5."""
    if value == 0:
        return "0"
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            unit = 1e3 if suffix == "k" else size
            return f"{value / unit:.4g}{suffix}"
    if abs(value) < 1e-3:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:.4g}"


def _round_step(rough: float) -> float:
    """Return the smallest of 1, 2, 2.5, 5, 10 times a power of ten that is not below `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
