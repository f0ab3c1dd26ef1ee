"""Checks of the checkpoint that a run starts from, before anything of it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.checkpoint.folder import LATEST, CheckpointFolder
from pretrain.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

    from pretrain.recipe import Recipe

_FILES = ("metadata.json", "common.pt", ".metadata")
"""Files that megatron-core needs to read a sharded checkpoint; .metadata is torch's index."""


def require_start(path: Path, own: Path | None, recipe: Recipe) -> None:
    """Check that `checkpoint.load` has a checkpoint that looks complete, or is the folder that the run itself fills.

    Args:
        path: `checkpoint.load`.
        own: the folder in which the run saves, if it is known and not in the run directory.
        recipe: of the run, whose model another program's checkpoint must have.

    Raises:
        CheckpointError: it has none, or one of which files are missing, or another program's that does not fit or is
            in the folder in which the run saves.
    """
    # Imported here, since few runs start from other programs' checkpoints.
    from pretrain.checkpoint.exchange.foreign import foreign_summary, require_fitting  # noqa: PLC0415

    if summary := foreign_summary(path):
        if own is not None and path.resolve() == own.resolve():
            msg = (
                f"checkpoint.save: {path} holds checkpoints of another program ({summary.format}).\n"
                "Name another folder; checkpoint.load may stay."
            )
            raise CheckpointError(msg)
        require_fitting(summary, recipe)
        return
    folder = CheckpointFolder(path)
    latest = folder.latest()
    if latest is not None:
        require_complete(folder.directory(latest))
    elif not is_own_empty_folder(path, own):
        raise nothing_to_load(path)


def is_own_empty_folder(path: Path, own: Path | None) -> bool:
    """Say whether a folder without a checkpoint is the run's own, which then starts from the beginning."""
    return own is not None and path.resolve() == own.resolve()


def require_complete(directory: Path) -> None:
    """Check that the folder of one checkpoint has the files that reading needs.

    Raises:
        CheckpointError: a file is missing, or the checkpoint is another program's.
    """
    missing = [name for name in _FILES if not (directory / name).is_file()]
    if missing:
        msg = (
            f"{directory} is not a complete checkpoint: {', '.join(missing)} is missing.\n"
            f"Name another folder, or write another iteration into {directory.parent / LATEST}."
        )
        raise CheckpointError(msg)


def nothing_to_load(path: Path) -> CheckpointError:
    """Return the error for a `checkpoint.load` without checkpoints, with a guess at the intended folder."""
    inside = path / "checkpoints"
    if (inside / LATEST).is_file():
        todo = f"Did you mean {inside}?"
    elif path.name.startswith("iter_") and (path.parent / LATEST).is_file():
        todo = f"Name the folder around it, {path.parent}; the checkpoint that its {LATEST} names is taken."
    else:
        todo = "Name the folder that holds iter_* folders, such as RUN/checkpoints, or another program's checkpoint."
    return CheckpointError(f"checkpoint.load: {path} holds no checkpoint ({LATEST} is missing).\n{todo}")
