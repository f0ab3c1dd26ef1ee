"""Environment variables of a rank: growth of torch's allocator, and the folder of Triton's compiled kernels."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""torch's own setting, from 2.9 on for every device, and its older name: one of the two decides."""

CACHE = ("TRITON_CACHE_DIR", "TRITON_HOME")
"""Triton's own settings: the folder itself, and the one in which it makes .triton/cache; the first one decides."""


def variables(given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to set, without those that the given environment decides already."""
    found = {}
    if not any(name in given for name in ALLOCATOR):
        found[ALLOCATOR[0]] = "expandable_segments:True"
    if not any(name in given for name in CACHE) and (folder := own_folder(Path(tempfile.gettempdir()))):
        found["TRITON_CACHE_DIR"] = str(folder)
    return found


def own_folder(parent: Path) -> Path | None:
    """Return a folder that this user alone writes to, made if it is missing; None if others own it or write to it.

    Triton runs what it finds there. Its default is in the home directory, which the ranks of many nodes share.
    """
    folder = parent / f"pretrain-triton-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return folder if is_own and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else None
