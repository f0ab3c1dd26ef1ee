"""The ranks whose own gradients were the first that were not finite."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from pretrain.report.plain_text import rank_names
from pretrain.training.rank_rows import rank_rows

if TYPE_CHECKING:
    from pretrain.engine.protocol import Step

_NAMED = 8
"""Ranks whose host and device are named; the others by their numbers."""


class BrokenSince:
    """Keeps on the device in which iteration this rank's own gradients, not yet reduced, were first not finite.

    In the next iteration those of all ranks are, since the reduction has spread them: whoever was first has made them.
    No step waits for it, and ranks exchange it only when a training has broken. It looks at gradients while they are
    there, since a fault that passes does not come again when its step is computed again.
    """

    def __init__(self, device: torch.device) -> None:
        """Begin with gradients that are finite."""
        self._device = device
        self._iteration = torch.zeros((), dtype=torch.int64, device=device)

    def see(self, iteration: int, step: Step) -> None:
        """Look at the step of an iteration, from 1; one that was withheld has broken nothing."""
        if step.own_gradients is not None and not step.withheld:
            is_first = ~torch.isfinite(step.own_gradients) & (self._iteration == 0)
            self._iteration.masked_fill_(is_first, iteration)

    def forget(self) -> None:
        """Begin again: the weights have gone back."""
        self._iteration.zero_()

    def in_words(self) -> str:
        """Return "from iteration 16 on, first on rank 1 (node7, cuda:3)"; "" if no rank has seen any; collective."""
        iterations: list[int] = rank_rows(self._iteration.view(1)).flatten().tolist()
        names = [""] * len(iterations)
        dist.all_gather_object(names, f"{socket.gethostname()}, {self._device}")
        return first_in_words(iterations, names)


def first_in_words(iterations: list[int], names: list[str]) -> str:
    """Return the same words for each rank's first iteration, 0 for none, and its host and device."""
    if not any(iterations):
        return ""
    first = min(filter(None, iterations))
    ranks = [rank for rank, iteration in enumerate(iterations) if iteration == first]
    since = f"from iteration {first} on, first on"
    if len(ranks) == len(iterations):
        return f"{since} {'all ranks' if len(ranks) > 1 else rank_names(ranks)}"
    if len(ranks) > _NAMED:
        return f"{since} {rank_names(ranks)}"
    return f"{since} {', '.join(f'rank {rank} ({names[rank]})' for rank in ranks)}"
