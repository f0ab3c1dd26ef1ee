"""Checks of both sides before the first of them is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.align.comparing.compatible import different, differing_keys
from pretrain.errors import RunError
from pretrain.plugins.host.discovery import find_backend
from pretrain.recipe import load_recipe
from pretrain.recipe.layout import lay_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.align.reading.recording import Recording
    from pretrain.align.side import Side


def require_ready(sides: Sequence[Side], recorded: Recording | None) -> None:
    """Check that recipes, backends and ranks of the sides are right, and that the sides train the same.

    A side of another installation may know other keys and backends: it is checked when it is recorded.

    Args:
        sides: that are to be recorded.
        recorded: the other one, if it is recorded already.

    Raises:
        RecipeError: a recipe cannot be run, or not on so many ranks.
        BackendError: a backend is missing.
        RunError: the sides train different things.
    """
    recipes = [] if recorded is None else [recorded.manifest["recipe"]]
    for side in sides:
        if side.python is None:
            recipe = load_recipe(side.recipe, side.comparable())
            find_backend(side.backend)
            lay_out(recipe, side.nproc or recipe.model_parallel_size)
            recipes.append(recipe.model_dump(mode="json"))
    differing = differing_keys(*recipes)[0] if len(recipes) > 1 else []
    if differing:
        raise RunError(different(differing))
