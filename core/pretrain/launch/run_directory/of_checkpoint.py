"""Runs and their checkpoints, found from what a user names."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from pretrain.recipe import load_recipe

RECIPE = "recipe.yml"


def is_run(path: Path) -> bool:
    """Say whether a path is the directory of a run."""
    return (path / RECIPE).is_file()


def recipe_of(path: Path) -> Path | None:
    """Return the recipe of the run of a checkpoint; None if there is none nearby.

    Args:
        path: a run directory, the folder of its checkpoints, or the folder of one.
    """
    folders = (path, *path.absolute().parents[:2])
    found = next((folder / RECIPE for folder in folders if is_run(folder)), None)
    if found is not None:
        return found
    runs = (_run_that_saves_into(folder) for folder in folders[:2])
    return next((run / RECIPE for run in runs if run is not None and is_run(run)), None)


def checkpoints_of(path: Path) -> Path:
    """Return the folder in which a run saves its checkpoints, if the path is a run directory; else the path itself.

    Raises:
        RecipeError: the run's recipe cannot be read.
    """
    if not is_run(path):
        return path
    from pretrain.checkpoint.folder import CheckpointFolder  # noqa: PLC0415  --help needs none of it

    return CheckpointFolder.of(load_recipe(path / RECIPE), path).path


def _run_that_saves_into(folder: Path) -> Path | None:
    """Return the run directory that a folder of checkpoints elsewhere names as its owner."""
    from pretrain.checkpoint.owner import OWNER  # noqa: PLC0415  as above

    with suppress(OSError, ValueError, KeyError, TypeError):
        return Path(json.loads((folder / OWNER).read_text())["run_dir"])
    return None
