"""Files that appear complete or not at all (a temporary file, then a rename), and folders that need not exist yet."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pretrain.errors import PretrainError


@contextmanager
def replacing(
    path: Path, *, error: type[PretrainError] | None = DataError, durable: bool = True, make_folders: bool = True
) -> Iterator[IO[bytes]]:
    """Open a temporary file for writing; rename it to `path` when the block ends, or remove it if the block raises.

    Of two nested blocks the inner file appears first. An OSError becomes a user error of type `error`, unless that is
    None. Without `durable` the disk is not waited for, and an outage may leave a truncated file under the name.
    """
    partial = _partial_of(path)
    try:
        if make_folders:
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("wb") as stream:
                yield stream
                if durable:
                    stream.flush()
                    os.fsync(stream.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as exc:
        if error is None:
            raise
        msg = f"{path} cannot be written: {exc.strerror or exc}."
        raise error(msg) from exc


def _partial_of(path: Path) -> Path:
    """Return the name of this process's temporary file; equal pids on a shared disk differ by their host."""
    return path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.partial")


def refuse_existing(paths: list[Path], *, force: bool) -> None:
    """Raise DataError for the first of `paths` that exists, unless `force`."""
    existing = [path for path in paths if path.exists()]
    if existing and not force:
        msg = f"{existing[0]} exists already.\nPass --force to replace it, or another name."
        raise DataError(msg)


def existing_folder(path: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())


def try_to_write(folder: Path) -> None:
    """Make something in a folder, or where it would be made, and remove it at once; OSError: that cannot be done."""
    # Permissions alone do not tell: root has all of them, also where a file system takes no file.
    from tempfile import TemporaryDirectory  # noqa: PLC0415  --help needs none of it

    try:
        with TemporaryDirectory(prefix=".pretrain-", dir=existing_folder(folder)):
            pass
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from error
