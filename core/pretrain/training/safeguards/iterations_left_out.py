"""Iterations whose batches are left out of a training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.recipe.sections.train import ranges

if TYPE_CHECKING:
    from pretrain.recipe import Recipe
    from pretrain.training.progress import Progress


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Iterations that are passed over, numbered as in the log: the first of a training is 1.

    Their batches are read and dropped: iteration and samples advance, weights, optimizer and schedule do not. These are
    the semantics of Megatron-LM's --iterations-to-skip, which counts from 0 (training_loop in
    megatron/training/training.py).

    Attributes:
        given: first and last ones of `train.iterations_to_skip`.
        progress: with the stretches that rollbacks have left out.
    """

    given: tuple[tuple[int, int], ...]
    progress: Progress

    @classmethod
    def of(cls, recipe: Recipe, progress: Progress) -> LeftOut:
        """Return those of a recipe and of a training's rollbacks."""
        return cls(tuple(ranges(recipe.train.iterations_to_skip)), progress)

    def has_next(self) -> bool:
        """Say whether the iteration that follows is passed over."""
        number = self.progress.iteration + 1
        return any(first <= number <= last for first, last in (*self.given, *self.progress.left_out))
