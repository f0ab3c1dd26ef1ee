"""Activations of a traced step, by region of the model."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pretrain.tools.plan.trace.rank_trace import RankTrace

ATTENTION = "core_attention"
"""Module of megatron-core between the attention's projections, whose forward pass selective recompute repeats."""


def region_of(module: str) -> str:
    """Return the region of a module by its path."""
    if module.startswith("embedding"):
        return "embedding"
    return "layers" if module.startswith("decoder.layers.") else "head"


class Activations:
    """Activations of a trace of one step: what forward and backward pass allocate and free again."""

    def __init__(self, trace: RankTrace) -> None:
        """Take the last step of a trace."""
        begin, self._updated, _ = trace.steps[-1]
        self._blocks = [
            block
            for number, block in enumerate(trace.blocks)
            if block.born >= begin
            and not block.on_host
            and block.place.phase == "forward-backward"
            and (block.died or self._updated) <= self._updated
            and number not in trace.gradients
        ]
        backward = [block.born for block in self._blocks if block.place.is_backward]
        self._turn = min(backward, default=self._updated)
        self._kept = [block for block in self._blocks if block.born < self._turn <= (block.died or self._updated)]

    def kept(self) -> dict[str, int]:
        """Return the bytes that the forward pass leaves for the backward pass, by region."""
        found: dict[str, int] = defaultdict(int)
        for block in self._kept:
            found[region_of(block.place.module)] += block.size
        return dict(found)

    def kept_by_attention(self) -> int:
        """Return those of them that `ATTENTION` leaves."""
        return sum(block.size for block in self._kept if ATTENTION in block.place.module)

    def peak_before_layers(self) -> int:
        """Return the peak in bytes until the last layer's backward pass frees what it was kept for."""
        return self._peak(0, min(min(deaths) for deaths in self._deaths().values()))

    def peak_in_first_layer(self) -> int:
        """Return the peak in bytes of the first layer's backward pass, from its first to its last release."""
        last = max(self._deaths().values(), key=max)
        return self._peak(min(last), max(last))

    def _deaths(self) -> dict[str, list[int]]:
        """Return when each layer's kept blocks are freed, in its backward pass."""
        found: dict[str, list[int]] = defaultdict(list)
        for block in self._kept:
            if region_of(block.place.module) == "layers" and block.died is not None:
                found[block.place.module.split(".")[2]].append(block.died)
        return dict(found)

    def _peak(self, begin: int, end: int) -> int:
        changes = [(block.born, block.size) for block in self._blocks]
        changes += [(block.died, -block.size) for block in self._blocks if block.died is not None]
        now = peak = 0
        for time, change in sorted(changes):
            if time > end:
                break
            now += change
            if time >= begin:
                peak = max(peak, now)
        return peak
