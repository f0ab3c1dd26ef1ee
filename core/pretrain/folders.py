"""Folders that need not exist yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def existing_folder(path: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())


def try_to_write(folder: Path) -> None:
    """Make something in a folder, or where it would be made, and remove it at once.

    Permissions alone do not tell: root has all of them, also where a file system takes no file.

    Raises:
        OSError: of the folder, if that cannot be done.
    """
    from tempfile import TemporaryDirectory  # noqa: PLC0415  --help needs none of it

    try:
        with TemporaryDirectory(prefix=".pretrain-", dir=existing_folder(folder)):
            pass
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from error
