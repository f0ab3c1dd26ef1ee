"""Shares of a device's published figures that a training reaches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Efficiencies:
    """Shares of a device's figures, 0 to 1.

    Attributes:
        matmul: of the peak in FLOP/s, in matmuls and attention.
        memory: of the memory's bandwidth.
        links: of the bandwidth of links.
    """

    matmul: float
    memory: float
    links: float

    def times(self, factor: float) -> Efficiencies:
        """Return the multiple: steps take as many times less."""
        return Efficiencies(self.matmul * factor, self.memory * factor, self.links * factor)


@dataclass(frozen=True, slots=True)
class Reached:
    """Range of the shares that a training reaches.

    Attributes:
        best: of the fastest step.
        worst: of the slowest.
        measured_in: run that reached them, in words; "" where they are assumed.
    """

    best: Efficiencies
    worst: Efficiencies
    measured_in: str = ""


WORST = Efficiencies(matmul=0.55, memory=0.6, links=0.6)
"""Low end: what published trainings exceed; see tests/tools/plan/published."""
BEST = Efficiencies(matmul=0.8, memory=0.9, links=0.9)
"""High end: about what large matmuls, memory and rings of A100 and H100 reach of their datasheets."""
ASSUMED = Reached(BEST, WORST)
MIDDLE = Efficiencies(*((getattr(WORST, name) + getattr(BEST, name)) / 2 for name in ("matmul", "memory", "links")))
"""Of which a run's share is a multiple."""
