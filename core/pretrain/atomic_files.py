"""Write files that appear complete or not at all: a temporary file, then a rename. Everything here uses this one."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file for writing that takes the name `path` when the block ends well, and vanishes when it does not.

    Of two nested blocks the inner file appears first. Folders are made as needed.

    Raises:
        DataError: the file cannot be written.
    """
    partial = partial_of(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as exc:
        msg = f"{path} cannot be written: {exc.strerror or exc}."
        raise DataError(msg) from exc


def partial_of(path: Path) -> Path:
    """Return the name under which this process writes `path`; on a shared disk the host tells two equal pids apart."""
    return path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.partial")


def refuse_existing(paths: list[Path], *, force: bool) -> None:
    """Raise DataError for the first of `paths` that exists, unless `force`."""
    existing = [path for path in paths if path.exists()]
    if existing and not force:
        msg = f"{existing[0]} exists already.\nPass --force to replace it, or another name."
        raise DataError(msg)
