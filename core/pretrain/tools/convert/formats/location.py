"""The folder of one checkpoint, found from what a user names: a run, a folder of checkpoints, or itself."""

from __future__ import annotations

import os
from pathlib import Path

from pretrain.checkpoint.folder import LATEST, CheckpointFolder
from pretrain.errors import CheckpointError

LATEST_OF_DEEPSPEED = "latest"
"""File of DeepSpeed and GPT-NeoX that names the newest folder."""
RELEASE = "release"
"""Content of Megatron-LM's LATEST, and folder, of weights that were published without an iteration."""


def one_checkpoint(path: Path) -> Path:
    """Return the folder of the latest checkpoint in `path`, or `path` itself where nothing names a latest one.

    Args:
        path: the folder of a run, of its checkpoints, or of one checkpoint.

    Raises:
        CheckpointError: it is not there, or names a latest checkpoint that is not.
    """
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        msg = f"{path} {what}.\nName the folder of a checkpoint, of several, or of a run."
        raise CheckpointError(msg)
    if not (path / LATEST).is_file() and (path / "checkpoints" / LATEST).is_file():
        path = path / "checkpoints"
    tracker = path / LATEST_OF_DEEPSPEED
    if (path / LATEST).is_file():
        try:
            return _latest(path)
        except CheckpointError:
            if not tracker.is_file():  # Megatron-DeepSpeed writes both, and only the folder that this one names
                raise
    if tracker.is_file():
        return _inside(tracker, tracker.read_text(errors="replace").strip())
    return path


def extent(folder: Path) -> tuple[int, int]:
    """Return the number and the bytes of all files in a folder and in folders of it; links to folders are not followed.

    A link counts as the file that it leads to, and one to nothing as itself.
    """
    files = [Path(parent, name) for parent, _, names in os.walk(folder) for name in names]
    return len(files), sum((file.stat() if file.exists() else file.lstat()).st_size for file in files)


def _latest(path: Path) -> Path:
    tracker = path / LATEST
    if tracker.read_text(errors="replace").strip() == RELEASE:
        return _inside(tracker, RELEASE)
    iteration = CheckpointFolder(path).latest()
    return path if iteration is None else CheckpointFolder(path).directory(iteration)


def _inside(tracker: Path, name: str) -> Path:
    """Return the folder that a file of one word names beside itself."""
    folder = tracker.parent / name
    if name in {"", ".", ".."} or Path(name).name != name or not folder.is_dir():
        msg = (
            f"{tracker} names {name[:80]!r}, and there is no such folder beside it.\nName the checkpoint's own folder."
        )
        raise CheckpointError(msg)
    return folder
