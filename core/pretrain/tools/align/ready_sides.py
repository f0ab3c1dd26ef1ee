"""Checks of both sides before the first of them is recorded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.errors import RunError
from pretrain.plugins.host.discovery import find_backend
from pretrain.plugins.host.manager import load_alone
from pretrain.plugins.host.members import require_device
from pretrain.recipe.layout import lay_out
from pretrain.tools.align.comparing.compatible import different, differing_keys
from pretrain.tools.convert.registry import summary_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.recipe import Recipe
    from pretrain.tools.align.reading.recording import Recording
    from pretrain.tools.align.side import Side


def require_ready(sides: Sequence[Side], recorded: Recording | None) -> None:
    """Check that recipes, devices, ranks and weights of the sides are right, and that the sides train the same.

    Ranks and device of another installation are checked when it is recorded: it may know other keys and backends.

    Args:
        sides: that are to be recorded.
        recorded: the other one, if it is recorded already.

    Raises:
        RecipeError: a recipe cannot be run, or not on so many ranks.
        BackendError: a backend is missing, or has no device.
        CheckpointError: the weights to begin with are missing.
        RunError: the sides train different things.
    """
    recipes = [side.load_comparable() for side in sides]
    for side, recipe in zip(sides, recipes, strict=True):
        if side.python is None:
            lay_out(recipe, side.nproc or recipe.model_parallel_size)
            require_device(load_alone(find_backend(side.backend)))
    trained = [recipe.model_dump(mode="json") for recipe in recipes]
    trained += [] if recorded is None else [recorded.manifest["recipe"]]
    differing = differing_keys(*trained)[0] if len(trained) > 1 else []
    if differing:
        raise RunError(different(differing))
    _require_weights(sides, recipes, is_recorded=recorded is not None)


def _require_weights(sides: Sequence[Side], recipes: Sequence[Recipe], *, is_recorded: bool) -> None:
    """Check the checkpoints that the sides begin with: the recipe's is taken by the first, unless one is recorded."""
    if len({recipe.checkpoint.load for recipe in recipes}) > 1:
        msg = "--set-against checkpoint.load would have no effect: both sides begin with the same weights.\n"
        raise RunError(msg + "The second side's are given by --checkpoint-against.")
    for number, (side, recipe) in enumerate(zip(sides, recipes, strict=True)):
        of_recipe = recipe.checkpoint.load if number == 0 and not is_recorded else None
        if side.checkpoint is not None or of_recipe is not None:
            summary_of(Path(side.checkpoint or of_recipe or ""))


def require_writable(page: Path) -> None:
    """Check that a page can be written, before the hours that are spent for it.

    Raises:
        RunError: it cannot.
    """
    folder = next(each for each in page.absolute().parents if each.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        why = "is not writable" if folder.is_dir() else "is a file, not a folder"
        msg = f"{page} cannot be written: {folder} {why}.\nName another file by --html."
        raise RunError(msg)
