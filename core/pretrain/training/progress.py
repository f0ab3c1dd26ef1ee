"""Progress of a training, its length, and the global batch of each step."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout


@dataclass(slots=True)
class Progress:
    """Counters since the training began, over all resumed parts; a checkpoint carries them."""

    iteration: int = 0  # optimizer steps, skipped ones and those whose batch was left out included
    consumed_samples: int = 0  # sequences read or left out; the position in the data
    skipped_iterations: int = 0  # steps without an update, because of an fp16 overflow
    blend: dict[str, Any] | None = None  # of `data.index: native` (pretrain.data.samples.native_samples)
    order: dict[str, Any] | None = None  # of `data.index: megatron` (pretrain.data.samples.megatron_order)
    tokenizer: str | None = None  # fingerprint of the one whose tokens were read; None: of an older version
    left_out: list[list[int]] = field(default_factory=list)  # first and last of each stretch that a rollback left out
    equal_at: int | None = None  # after which `train.check_replicas_interval` last found equal replicas
    losses: list[float] = field(default_factory=list)  # of the last steps, nats per token, for `train.loss_spike`

    def to_mapping(self) -> dict[str, Any]:
        """Return the counters by name."""
        return dataclasses.asdict(self)

    @classmethod
    def from_mapping(cls, counters: Mapping[str, Any]) -> Progress:
        """Return the progress of a mapping that `to_mapping` made."""
        names = ("iteration", "consumed_samples", "skipped_iterations")
        return cls(
            **{name: int(counters[name]) for name in names},
            blend=counters.get("blend"),
            order=counters.get("order"),
            tokenizer=counters.get("tokenizer"),
            left_out=[[int(number) for number in stretch] for stretch in counters.get("left_out", ())],
            equal_at=counters.get("equal_at"),
            losses=[float(loss) for loss in counters.get("losses", ())],
        )

    def go_back(self, earlier: Progress) -> None:
        """Take over an earlier progress, in place; the stretches that were left out since then stay."""
        left_out = self.left_out
        for each in dataclasses.fields(self):
            if each.name != "losses":
                setattr(self, each.name, getattr(earlier, each.name))
        self.losses[:] = earlier.losses  # the spike watch holds the list
        self.left_out = earlier.left_out + [stretch for stretch in left_out if stretch not in earlier.left_out]


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """Global batch sizes, as Megatron-LM's `--rampup-batch-size` counts them."""

    final: int
    rampup: tuple[int, int, int] | None = None  # start, increment, samples over which it grows; None: constant

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Length:
    """Iterations of a training, and the batch of each."""

    iterations: int  # after which the training ends, those before a resume included
    sizes: BatchSizes
    layout: Layout

    @classmethod
    def of(cls, recipe: Recipe, progress: Progress, layout: Layout) -> Length:
        """Return the length of a recipe's training that continues from `progress`."""
        return cls(iterations=total_iterations(recipe, progress), sizes=BatchSizes.of(recipe), layout=layout)

    def batch(self, progress: Progress) -> int:
        """Return the global batch of the next step, samples."""
        return self.sizes.at(progress.consumed_samples)


def total_iterations(recipe: Recipe, progress: Progress) -> int:
    """Return the length of the training in iterations, at least those that were taken."""
    # Where it is given in samples, iterations that were taken count as taken, though their batch may have been another.
    if recipe.train.train_iters is not None:
        return max(recipe.train.train_iters, progress.iteration)
    left = BatchSizes.of(recipe).iterations(recipe.train.train_samples or 0, progress.consumed_samples)
    return progress.iteration + left


def total_samples(recipe: Recipe, progress: Progress) -> int:
    """Return the samples for which the training's index is made: at least what was read and what is left to read."""
    # A training that became shorter keeps the index of before: beyond one epoch a shorter one has another order.
    left = total_iterations(recipe, progress) - progress.iteration
    needed = recipe.train.train_samples or progress.consumed_samples + left * recipe.train.global_batch_size
    before = progress.order["samples"] if progress.order else 0
    return max(needed, progress.consumed_samples, int(before))
