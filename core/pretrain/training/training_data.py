"""Micro-batches of this rank: training ones from a position on, which may go back; held-out ones from the start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from pretrain.bridge.megatron import prepare_to_read
from pretrain.checkpoint.identity import require_same_tokenizer
from pretrain.data.needed import samples_needed
from pretrain.data.samples.batches import MicroBatches
from pretrain.data.samples.datasets import build_datasets
from pretrain.data.samples.megatron_order import order_of, require_same_order
from pretrain.data.samples.native_samples import NativeSamples
from pretrain.engine import groups
from pretrain.model.context import context_rank
from pretrain.recipe.sections.train import ranges
from pretrain.report.metrics import EvalRecord
from pretrain.training.progress import total_iterations, total_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from pretrain.data.needed import SampleCounts
    from pretrain.data.samples.datasets import Datasets
    from pretrain.engine.protocol import Batch, ForwardEngine
    from pretrain.report.timers import PhaseTimers
    from pretrain.training.progress import Progress
    from pretrain.training.rank_setup import RankSetup


Split = Literal["valid", "test"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Evaluates the same samples every time, so that the losses of one run can be compared."""

    engine: ForwardEngine
    batches: Callable[[Split], Iterator[Batch] | None]  # a fresh iterator over this rank's; None where it reads no data
    splits: tuple[Split, ...]  # those that hold samples
    num_microbatches: int  # of this rank in a global batch
    iters: int  # global batches

    def run(self, split: Split, iteration: int) -> EvalRecord:
        """Return loss and perplexity of a split; all ranks call it together."""
        batches = self.batches(split)
        loss = self.engine.evaluate(batches, self.num_microbatches, self.iters)
        return EvalRecord.of(split, iteration, loss.item())


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingData:
    """The datasets of a run, as one rank reads them."""

    setup: RankSetup
    engine: ForwardEngine  # says whether this rank reads data at all
    datasets: Datasets  # None for a split that is not used, and on ranks that read none
    needed: int  # training samples that all parts of the run read together

    @classmethod
    def of(cls, setup: RankSetup, engine: ForwardEngine, progress: Progress) -> TrainingData:
        """Build the datasets of the whole training; all ranks call it together."""
        recipe = setup.recipe
        counts = samples_needed(recipe, total_iterations(recipe, progress))
        return cls._of(setup, engine, replace(counts, train=total_samples(recipe, progress)))

    @classmethod
    def held_out(cls, setup: RankSetup, engine: ForwardEngine, splits: Sequence[Split]) -> TrainingData:
        """Build the datasets of these splits alone, with the samples that a training evaluates; all ranks together."""
        used = samples_needed(setup.recipe, 0)
        valid, test = (used.valid if "valid" in splits else 0), (used.test if "test" in splits else 0)
        return cls._of(setup, engine, replace(used, valid=valid, test=test))

    @classmethod
    def _of(cls, setup: RankSetup, engine: ForwardEngine, counts: SampleCounts) -> TrainingData:
        datasets = build_datasets(setup.recipe, setup.tokenizer, counts, on_this_rank=engine.reads_data)
        return cls(setup=setup, engine=engine, datasets=datasets, needed=counts.train)

    def resume(self, progress: Progress) -> tuple[TrainingData, list[str]]:
        """Return the data from `progress` on, and notices of a changed blend; `progress` gets blend and tokenizer."""
        recipe, notices = self.setup.recipe, self._take_tokenizer(progress)
        train = self.datasets.train
        if not isinstance(train, NativeSamples):
            progress.blend = None
            if train is not None:
                ours = order_of(train, self.needed)
                if progress.order is not None and progress.consumed_samples:
                    notices += filter(None, [require_same_order(progress.order, ours)])
                progress.order = ours
            return self, notices
        progress.order = None
        train = train.resume(progress.consumed_samples, progress.blend)
        is_new = train.phase.begin == progress.consumed_samples > 0
        progress.blend = train.blend()
        if is_new:
            notices += [f"the blend changes: {line}" for line in train.describe(progress.consumed_samples)]
            if recipe.evaluation.interval and recipe.data.own_files is None:
                notices.append(
                    "the blend changes: evaluations use it too, so their losses cannot be compared with earlier ones"
                )
        return replace(self, datasets=replace(self.datasets, train=train)), notices

    def _take_tokenizer(self, progress: Progress) -> list[str]:
        """Let `progress` have the tokenizer of the data; return a notice where weights are trained on with another."""
        files, fingerprint = self.setup.recipe.tokenizer.files, self.setup.tokenizer.fingerprint
        before, progress.tokenizer = progress.tokenizer, fingerprint
        if progress.iteration:
            require_same_tokenizer(files, fingerprint, before, "the checkpoint")
        elif before not in (None, fingerprint):  # checkpoint.finetune
            return ["the weights were trained with another tokenizer: their tokens may be other ones"]
        return []

    def training(self, consumed_samples: int, timers: PhaseTimers) -> Generator[Batch] | None:
        """Return the micro-batches that follow `consumed_samples`, or None where the rank reads no data."""
        batches = self._batches(self.datasets.train, consumed_samples=consumed_samples)
        return None if batches is None else _timed(batches, timers)

    def evaluation(self) -> Evaluation:
        """Return the evaluation of the recipe's samples."""
        return Evaluation(
            engine=self.engine,
            batches=self._held_out,
            splits=("valid", "test") if self.setup.recipe.data.splits[2] else ("valid",),
            num_microbatches=self.setup.layout.num_microbatches(self.setup.recipe.train.global_batch_size),
            iters=self.setup.recipe.evaluation.iters,
        )

    def _held_out(self, split: Split) -> MicroBatches | None:
        dataset = self.datasets.valid if split == "valid" else self.datasets.test
        # In this process: starting workers takes longer than reading an evaluation.
        return self._batches(dataset, consumed_samples=0, cyclic=True, num_workers=0)

    def _batches(self, dataset: Any | None, **options: Any) -> MicroBatches | None:
        if dataset is None or not self.engine.reads_data:
            return None
        return MicroBatches(
            dataset,
            micro_batch_size=self.setup.recipe.train.micro_batch_size,
            data_parallel_rank=groups.data_parallel_rank(),
            data_parallel_size=self.setup.layout.data_parallel_size,
            context=context_rank(),
            eod=self.setup.tokenizer.eod if self.setup.recipe.data.reset_attention_mask else None,
            prepare_worker=prepare_to_read,
            pin_memory=self.setup.pin_memory,
            **{"num_workers": self.setup.recipe.data.num_workers, **options},
        )


def _timed(batches: MicroBatches, timers: PhaseTimers) -> Generator[Batch]:
    try:
        while True:
            with timers.phase("data"):
                batch = next(batches)  # an iterator that ends raises DataError
            yield batch
    finally:
        batches.close()


class RewindableBatches:
    """The micro-batches that follow a progress, whose blend `open_at` may update.

    Those of some iterations, numbered as in the log, are skipped: read and dropped, so that iteration and samples
    advance, and weights, optimizer and schedule do not. These are the semantics of Megatron-LM's --iterations-to-skip,
    which counts from 0 (training_loop in megatron/training/training.py).
    """

    def __init__(
        self,
        open_at: Callable[[Progress], Generator[Batch] | None],
        progress: Progress,
        skipped: Iterable[int | str] = (),
    ) -> None:
        self._open_at, self._progress = open_at, progress
        self._skipped = ranges(skipped)  # of `train.iterations_to_skip`; rollbacks add to those of the progress
        self.following = open_at(progress)  # None where this rank's stages read no data

    def skips_next(self) -> bool:
        """Say whether the batch of the next iteration is skipped."""
        number = self._progress.iteration + 1
        return any(first <= number <= last for first, last in (*self._skipped, *self._progress.left_out))

    def skip(self, num_microbatches: int) -> None:
        """Read so many micro-batches, and drop them."""
        for _ in islice(self.following or (), num_microbatches):
            pass

    def go_back(self) -> None:
        """End the workers that read ahead, and open the data again: the progress has gone back."""
        if self.following is not None:
            self.following.close()
        self.following = self._open_at(self._progress)
