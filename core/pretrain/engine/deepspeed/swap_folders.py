"""Folders of a rank's ZeRO-3 files: `nvme_path`/zero_stage_3/*/rank0 for rank 0 of the world.

DeepSpeed names them (AsyncPartitionedParameterSwapper, OptimizerSwapper). It checks neither that it can write there,
nor that no other training does so, whose values it would read as its own; and it does not remove its files.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.collectives import first_problem
from pretrain.errors import RecipeError

if TYPE_CHECKING:
    from collections.abc import Mapping


_claimed: list[tuple[Path, int, int]] = []
"""Folders of this process: path, rank, and the open file whose lock keeps other processes out."""


def claim(paths: Mapping[str, str], rank: int) -> None:
    """Claim this rank's folders until `release`; the files of a killed run are removed.

    All ranks call it together. Folders of an earlier training of this process are released.

    Args:
        paths: `nvme_path` by its key in the recipe.
        rank: in the world.

    Raises:
        RecipeError: on all ranks, when one of them cannot use a folder.
    """
    release()
    problems = [_claim(key, Path(path), rank) for key, path in paths.items()]
    problem = first_problem(next(filter(None, problems), None))
    if problem is not None:
        release()
        raise RecipeError(problem)


def release() -> None:
    """Remove this rank's files, and the folders where no other rank has any."""
    while _claimed:
        folder, rank, lock = _claimed.pop()
        parents = _clear(folder, rank)
        (folder / f"rank{rank}.lock").unlink(missing_ok=True)
        os.close(lock)
        for parent in (*parents, folder):
            with contextlib.suppress(OSError):  # others' files are in it
                parent.rmdir()


def _claim(key: str, path: Path, rank: int) -> str | None:
    """Claim one folder; return the reason if it cannot be used."""
    folder = path / "zero_stage_3"
    if any(folder == claimed for claimed, *_ in _claimed):
        return None
    if not path.is_dir():
        return f"{key}: {path} is not a folder on this machine.\nMake it, or give another one."
    try:
        folder.mkdir(exist_ok=True)
        lock = _lock(folder / f"rank{rank}.lock")
    except OSError as error:
        # The extension opens its files with O_DIRECT (open_file of deepspeed_aio_common.cpp).
        lacks_direct = error.errno == errno.EINVAL
        reason = "is on a file system without direct I/O" if lacks_direct else f"cannot be written: {error.strerror}"
        return f"{key}: {path} {reason}.\nGive a folder of a disk of this machine, in which this user may write."
    if lock is None:
        return f"{key}: {path} is in use by another run.\nWait until it ends, or give this run another folder."
    _claimed.append((folder, rank, lock))
    _clear(folder, rank)
    return None


def _lock(path: Path) -> int | None:
    """Return the open file, locked; None if another process has it. The system releases the locks of dead processes."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_DIRECT", 0), 0o600)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_there = path.exists() and os.path.samestat(os.fstat(file), path.stat())
    except OSError as error:
        os.close(file)
        if isinstance(error, BlockingIOError):
            return None
        raise
    if is_there:
        return file
    os.close(file)  # its owner has removed it since it was opened
    return _lock(path)


def _clear(folder: Path, rank: int) -> list[Path]:
    """Remove a rank's files; return the folders that had some."""
    found = list(folder.glob(f"*/rank{rank}"))
    for files in found:
        shutil.rmtree(files, ignore_errors=True)
    return [files.parent for files in found]
