"""Length of a training, and its global batch: constant, or growing with the samples consumed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout
    from pretrain.training.progress import Progress


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """Global batch sizes, as Megatron-LM's `--rampup-batch-size` counts them.

    Attributes:
        final: the global batch at the end.
        rampup: start, increment and the samples over which it grows; None for a constant batch.
    """

    final: int
    rampup: tuple[int, int, int] | None = None

    @classmethod
    def of(cls, recipe: Recipe) -> BatchSizes:
        """Return the sizes of a recipe."""
        return cls(recipe.train.global_batch_size, recipe.train.rampup_batch_size)

    def at(self, consumed_samples: int) -> int:
        """Return the global batch of the step that begins after `consumed_samples`."""
        if self.rampup is None:
            return self.final
        start, increment, samples = self.rampup
        if consumed_samples > samples or self.final == start:
            return self.final
        samples_per_increment = samples / ((self.final - start) / increment)
        return min(start + int(consumed_samples / samples_per_increment) * increment, self.final)

    def iterations(self, samples: int, consumed: int = 0) -> int:
        """Return the number of steps from `consumed` to `samples`; a rest that does not fill a batch is left out."""
        iterations = 0
        while self.at(consumed) != self.final:
            if consumed + self.at(consumed) > samples:
                return iterations
            consumed += self.at(consumed)
            iterations += 1
        return iterations + max(0, samples - consumed) // self.final

    def samples(self, iterations: int) -> int:
        """Return the samples that so many steps from the start consume."""
        consumed = 0
        for done in range(iterations):
            if self.at(consumed) == self.final:
                return consumed + (iterations - done) * self.final
            consumed += self.at(consumed)
        return consumed


@dataclass(frozen=True, kw_only=True, slots=True)
class Length:
    """Iterations of a training, and the batch of each.

    Attributes:
        iterations: after which the training ends, those before a resume included.
        sizes: the global batch by consumed samples.
        layout: sizes of the parallel groups.
    """

    iterations: int
    sizes: BatchSizes
    layout: Layout

    def batch(self, progress: Progress) -> int:
        """Return the global batch of the next step, samples."""
        return self.sizes.at(progress.consumed_samples)


def total_iterations(recipe: Recipe, progress: Progress) -> int:
    """Return the length of the training in iterations, at least those that were taken.

    Where it is given in samples, iterations that were taken count as taken, though their batch may have been another.
    """
    if recipe.train.train_iters is not None:
        return max(recipe.train.train_iters, progress.iteration)
    left = BatchSizes.of(recipe).iterations(recipe.train.train_samples or 0, progress.consumed_samples)
    return progress.iteration + left


def total_samples(recipe: Recipe, progress: Progress) -> int:
    """Return the samples for which the training's index is made: at least what was read and what is left to read.

    A training that became shorter keeps the index of before, because beyond one epoch a shorter one has another order.
    """
    left = total_iterations(recipe, progress) - progress.iteration
    needed = recipe.train.train_samples or progress.consumed_samples + left * recipe.train.global_batch_size
    before = progress.order["samples"] if progress.order else 0
    return max(needed, progress.consumed_samples, int(before))
