"""Checks of the checkpoint that a run starts from, before anything of it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.checkpoint.folder import LATEST, CheckpointFolder
from pretrain.checkpoint.foreign import foreign_checkpoint
from pretrain.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

_FILES = ("metadata.json", "common.pt", ".metadata")
"""Files that megatron-core needs to read a sharded checkpoint; .metadata is torch's index."""


def require_start(path: Path, own: Path | None) -> None:
    """Check that `checkpoint.load` has a checkpoint that looks complete, or is the folder that the run itself fills.

    Args:
        path: `checkpoint.load`.
        own: the folder in which the run saves, if it is known and not in the run directory.

    Raises:
        CheckpointError: it has none, or another program's, or one of which files are missing.
    """
    folder = CheckpointFolder(path)
    latest = folder.latest()
    if latest is not None:
        require_complete(folder.directory(latest))
    elif not is_own_empty_folder(path, own):
        raise nothing_to_load(path)


def is_own_empty_folder(path: Path, own: Path | None) -> bool:
    """Say whether a folder without a checkpoint is the run's own, which then starts from the beginning."""
    return own is not None and path.resolve() == own.resolve() and not foreign_checkpoint(path)


def require_complete(directory: Path) -> None:
    """Check that the folder of one checkpoint has the files that reading needs.

    Raises:
        CheckpointError: a file is missing, or the checkpoint is another program's.
    """
    missing = [name for name in _FILES if not (directory / name).is_file()]
    if missing:
        foreign = foreign_checkpoint(directory)
        if foreign:
            msg = f"{directory} is {foreign}.\nName the folder of a run of pretrain, such as RUN/checkpoints."
        else:
            msg = (
                f"{directory} is not a complete checkpoint: {', '.join(missing)} is missing.\n"
                f"Name another folder, or write another iteration into {directory.parent / LATEST}."
            )
        raise CheckpointError(msg)


def nothing_to_load(path: Path) -> CheckpointError:
    """Return the error for a `checkpoint.load` without checkpoints, with a guess at the intended folder."""
    foreign, inside = foreign_checkpoint(path), path / "checkpoints"
    if foreign:
        what = f"checkpoint.load: {path} holds {foreign}."
    else:
        what = f"checkpoint.load: {path} holds no checkpoint ({LATEST} is missing)."
    if (inside / LATEST).is_file():
        todo = f"Did you mean {inside}?"
    elif not foreign and path.name.startswith("iter_") and (path.parent / LATEST).is_file():
        todo = f"Name the folder around it, {path.parent}; the checkpoint that its {LATEST} names is taken."
    else:
        todo = "Name the folder that holds iter_* folders, such as RUN/checkpoints."
    return CheckpointError(f"{what}\n{todo}")
