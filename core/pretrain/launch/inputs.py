"""Checks of a run's input files before it starts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.errors import DataError, PretrainError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pretrain.recipe import Recipe


def require_inputs(recipe: Recipe, *, checkpoint: bool) -> None:
    """Open the tokenizer and the token files; files that `data.corpus` builds may be missing.

    Args:
        recipe: of the run.
        checkpoint: whether the checkpoint that the run starts from, `checkpoint.load`, must be there too.

    Raises:
        PretrainError: one is missing or damaged, and what to do; of several, one line for each.
    """
    problems = [problem for look in _checks(recipe, checkpoint=checkpoint) if (problem := _problem(look))]
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
    from pretrain.data.corpus.recipe_corpus import is_complete  # noqa: PLC0415  few recipes build their corpus

    if is_complete(recipe.data.path, recipe.tokenizer):
        return ""
    tokenizer = f" and {recipe.tokenizer.file}" if recipe.tokenizer.file else ""
    return f"data: the run builds {recipe.data.path}{tokenizer} from {recipe.data.corpus.source}, since they are absent"


def _checks(recipe: Recipe, *, checkpoint: bool) -> Iterator[Callable[[], object]]:
    """Yield a check for each input, which raises if the input cannot be opened."""
    from pretrain.data.token_files.reading import TokenFile  # noqa: PLC0415  --help needs none of them
    from pretrain.data.tokenizers import load_tokenizer  # noqa: PLC0415

    if not built_inputs(recipe):
        yield lambda: load_tokenizer(recipe.tokenizer)
        for path in [recipe.data.path] if recipe.data.path else [part.path for part in recipe.data.blend or ()]:
            yield partial(TokenFile.open, path)
    if checkpoint and recipe.checkpoint.load is not None:
        yield partial(_require_checkpoint, recipe.checkpoint.load, recipe)


def _require_checkpoint(load: str, recipe: Recipe) -> None:
    from pretrain.checkpoint.starting_checkpoint import require_start  # noqa: PLC0415  most runs load no checkpoint

    save = recipe.checkpoint.save
    require_start(Path(load), Path(save) if isinstance(save, str) else None, recipe)


def _problem(look: Callable[[], object]) -> PretrainError | None:
    """Return the reason why an input cannot be used; None if it can."""
    try:
        look()
    except PretrainError as error:
        return error
    return None
