"""Samples that a training reads of each split, and the tool that builds its token files (`data.corpus`)."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from pretrain.recipe import Recipe
    from pretrain.recipe.sections.data import TokenizerSection


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleCounts:
    """Samples (sequences of `model.seq_length`) needed from each split; 0 if the split is not used."""

    train: int
    valid: int = 0
    test: int = 0


def samples_needed(recipe: Recipe, train_iters: int) -> SampleCounts:
    """Return the samples that a training of `train_iters` iterations reads; every evaluation reads the same ones."""
    batch = recipe.train.global_batch_size
    train = recipe.train.train_samples or train_iters * batch
    if recipe.evaluation.interval == 0:
        return SampleCounts(train=train)
    evaluation = recipe.evaluation.iters * batch
    return SampleCounts(train=train, valid=evaluation, test=evaluation if recipe.data.splits[2] else 0)


class OwnCorpus(Protocol):
    """Functions of pretrain.tools.corpus.recipe_corpus for a run."""

    def is_complete(self, prefix: str, tokenizer: TokenizerSection) -> bool:
        """Return whether the token files and the tokenizer exist."""

    def prepare_corpus(self, recipe: Recipe) -> None:
        """Build the token files of `data.path`, and the tokenizer, if they are absent."""

    def require_buildable(self, recipe: Recipe) -> None:
        """Check that the corpus can be written, and write nothing."""


def own_corpus() -> OwnCorpus:
    """Return the tool."""
    return cast("OwnCorpus", import_module("pretrain.tools.corpus.recipe_corpus"))
