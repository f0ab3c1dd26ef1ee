"""Load a YAML file and overrides as a checked `Recipe`, and write one; errors name file, line and key."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from pretrain.errors import RecipeError
from pretrain.recipe.checks.effect import problems_of, without_effect
from pretrain.recipe.deepspeed.translate import merge_deepspeed
from pretrain.recipe.deepspeed.translation import no_translation
from pretrain.recipe.document import BASE, FORMAT, Document, apply_override, take_version
from pretrain.recipe.extends import read_recipe
from pretrain.recipe.problem import describe, problems_in
from pretrain.recipe.recipe import Recipe, RecipeOrigin

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from pretrain.recipe.deepspeed.translation import Translation
    from pretrain.recipe.problem import Problem


def load_recipe(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe from a YAML file, laid over those that it extends.

    Overrides are "section.key=value", the value in YAML; later ones win, null unsets a key. Raises RecipeError, with a
    line for each mistake.
    """
    return load_with_document(path, overrides)[0]


def load_with_document(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> tuple[Recipe, Document]:
    """Read a recipe as `load_recipe`; return with it the keys that were given, and their places."""
    document = read_recipe(Path(path))
    return _build(document, overrides), document


def make_recipe(data: Mapping[str, Any], overrides: Sequence[str] = (), source: str = "recipe") -> Recipe:
    """Make a recipe of plain data, as `load_recipe` does of a file; `source` is shown in errors."""
    return _build(Document(source, copy.deepcopy(dict(data))), overrides)


def make_effective(document: Document) -> tuple[Recipe, list[Problem]]:
    """Make a recipe of a document without its keys that have no effect; return it, and a problem for each of those."""
    left_out: list[Problem] = []
    while True:
        recipe, problems = _read(document, RecipeOrigin(document.source))
        if recipe is not None and not problems:
            return recipe, left_out
        idle = [problem for problem in problems if problem.switched_off_by]
        if recipe is None or len(idle) < len(problems):
            raise RecipeError(
                describe(document, [problem for problem in problems if problem not in idle], no_translation())
            )
        for problem in idle:
            document.remove(problem.path)
        left_out += idle


def _build(document: Document, overrides: Iterable[str]) -> Recipe:
    document.leave_out_replaced()
    for override in overrides:
        apply_override(document, override)
    take_version(document)
    taken = merge_deepspeed(document)
    notices = list(taken.notices)
    while True:
        recipe, problems = _read(document, RecipeOrigin(document.source, tuple(notices), taken.accumulation_steps))
        if recipe is not None and not problems:
            break
        unread = _drop_unread(document, problems, taken)
        notices += unread
        if not _drop_switched_off(document, problems) and not unread:
            raise RecipeError(describe(document, problems, taken))
    if taken.problems:
        raise RecipeError(describe(document, [], taken))
    return recipe


def _read(document: Document, origin: RecipeOrigin) -> tuple[Recipe | None, list[Problem]]:
    """Return the recipe and its problems; no recipe if a section rejects its keys."""
    try:
        recipe = Recipe.model_validate(document.data, context={"origin": origin})
    except ValidationError as error:
        return None, problems_in(error)
    return recipe, problems_of(recipe)


def _drop_switched_off(document: Document, problems: Iterable[Problem]) -> bool:
    """Drop keys that a later layer left without effect, such as the loss scale after --set precision.dtype=fp32."""
    dropped = False
    for problem in problems:
        last = max(map(document.layer, problem.switched_off_by), default=BASE)
        if last > document.layer(problem.path):
            document.left_out[problem.path] = problem.text
            document.remove(problem.path)
            dropped = True
    return dropped


def _drop_unread(document: Document, problems: Iterable[Problem], taken: Translation) -> list[str]:
    """Drop keys that a DeepSpeed file gives and DeepSpeed would not read, with a notice of each."""
    notices = []
    for problem in problems:
        if problem.switched_off_by and problem.path in taken.merged:
            document.remove(problem.path)
            notices.append(f"{document.place(tuple(problem.path.split('.')))}: left out: {problem.text}")
    return notices


def to_yaml(recipe: Recipe) -> str:
    """Return the recipe with every default written out but for keys without effect; the text describes the same run."""
    document = Document(recipe.source, recipe.model_dump(mode="json", exclude_none=True))
    for path in without_effect(recipe):
        document.remove(path)
    return yaml.safe_dump({"version": FORMAT, **document.data}, sort_keys=False, allow_unicode=True, width=120)
