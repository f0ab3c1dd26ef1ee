"""Checks of a run's input files before it starts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pretrain.data.needed import own_corpus
from pretrain.errors import DataError, PretrainError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pretrain.data.needed import SampleCounts
    from pretrain.recipe import Recipe


def require_inputs(recipe: Recipe, samples: SampleCounts) -> None:
    """Check the tokenizer and the token files; files that `data.corpus` builds may be missing.

    Args:
        recipe: of the run.
        samples: that are read from each split.

    Raises:
        PretrainError: one is missing, damaged, too small, or of another tokenizer, and what to do; of several, one line
            for each.
    """
    problems = [problem for look in _checks(recipe, samples) if (problem := _problem(look))]
    if len(problems) == 1:
        raise problems[0]
    if problems:
        lines = [str(problem).splitlines()[0] for problem in problems]
        msg = f"{len(problems)} inputs are missing or damaged; paths are relative to the working directory."
        raise DataError("\n".join([msg, *lines]))


def built_inputs(recipe: Recipe) -> str:
    """Return the missing files that the run will build; empty if there are none."""
    if recipe.data.corpus is None or recipe.data.path is None:
        return ""
    if own_corpus().is_complete(recipe.data.path, recipe.tokenizer):
        return ""
    tokenizer = f" and {recipe.tokenizer.file}" if recipe.tokenizer.file else ""
    return f"data: the run builds {recipe.data.path}{tokenizer} from {recipe.data.corpus.source}, since they are absent"


def _checks(recipe: Recipe, samples: SampleCounts) -> Iterator[Callable[[], object]]:
    """Yield a check for each input, which raises if the input cannot be used."""
    from pretrain.data.samples.checks import check_token_files, split_bounds  # noqa: PLC0415  --help needs none of them
    from pretrain.data.token_files.reading import TokenFile  # noqa: PLC0415
    from pretrain.data.tokenizers import load_tokenizer  # noqa: PLC0415

    if built_inputs(recipe):
        return
    tokenizer = None
    try:
        tokenizer = load_tokenizer(recipe.tokenizer)
    except DataError as error:
        yield partial(_raise, error)
    needed, bounds = (samples.train, samples.valid, samples.test), split_bounds(recipe.data)
    for path in [recipe.data.path] if recipe.data.path else [part.path for part in recipe.data.blend or ()]:
        if tokenizer is None:
            yield partial(TokenFile.open, path)
        else:
            yield partial(check_token_files, path, tokenizer, bounds, needed, recipe.model.seq_length)


def _raise(error: DataError) -> None:
    raise error


def _problem(look: Callable[[], object]) -> PretrainError | None:
    """Return the reason why an input cannot be used; None if it can."""
    try:
        look()
    except PretrainError as error:
        return error
    return None
