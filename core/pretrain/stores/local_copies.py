"""Copies of stored objects on this node: one process copies, the others wait; complete or absent.

A copy lies in PRETRAIN_CACHE (default: ~/.cache/pretrain), in a folder that is named by names, sizes and tags of its
objects: objects that have changed are another copy, and an interrupted copy goes on where it was.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pretrain.stores.object_store import ObjectStore, StoredObject

_TOGETHER = 8  # files that are copied at once
_SAID = 100_000_000  # bytes from which the user is told why nothing else happens
_SOURCE = ".address"  # file beside a copy, with what it is a copy of


def node_copy(
    store: ObjectStore,
    choose: Callable[[], Sequence[StoredObject]],
    require_intact: Callable[[Path], None] = lambda folder: None,  # noqa: ARG005
    chosen: Sequence[StoredObject] | None = None,
) -> Path:
    """Return a folder with the chosen objects, by the last name of the store's address; StoreError: not possible.

    `require_intact` is called with the copied folder, before any other process sees it; if it raises, nothing is kept.
    `chosen`: what another node has chosen already, which must be the same at the end.
    """
    objects = choose() if chosen is None else chosen
    _require_inside(store, objects)
    folder = place_of(store, objects)
    if folder.is_dir():
        return folder
    try:
        with _alone(folder.parent):
            if not folder.is_dir():
                _copy(store, objects, folder, require_intact, choose)
    except OSError as error:
        size = sum(each.size for each in objects) / 1e9
        is_full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        needed = f"with {size:,.1f} GB of free space" if is_full else "that can be written"
        msg = (
            f"{store.address} cannot be copied to {folder.parent}: {error.strerror or error}.\n"
            f"Set PRETRAIN_CACHE to a folder {needed}."
        )
        raise StoreError(msg) from error
    return folder


def place_of(store: ObjectStore, objects: Sequence[StoredObject]) -> Path:
    """Return the folder of a copy, which need not be there."""
    root = Path(os.environ.get("PRETRAIN_CACHE") or Path.home() / ".cache" / "pretrain")
    digest = hashlib.sha256(repr((store.address, *objects)).encode()).hexdigest()[:16]
    return root.absolute() / "copies" / digest / store.address.rpartition("/")[2]


def shown_place(path: Path) -> str:
    """Return the address that a folder, or one in it, is a copy of; else its path."""
    for folder in (path, path.parent):
        with suppress(OSError):
            return f"{(folder.parent / _SOURCE).read_text().strip()}{str(path).removeprefix(str(folder))}"
    return str(path)


def remove_copy(copy: Path) -> None:
    """Remove a copy; whoever needs it again copies again."""
    shutil.rmtree(copy.parent, ignore_errors=True)


def _require_inside(store: ObjectStore, objects: Sequence[StoredObject]) -> None:
    """Require that each name is one of a file below a folder: a store takes any."""
    for name in (each.name for each in objects):
        if any(part in {"", ".", ".."} for part in name.split("/")):
            msg = (
                f"{store.address} has an object {name[:80]!r}, which is no name of a file in a folder.\n"
                "Remove it, or rename it."
            )
            raise StoreError(msg)


def _copy(
    store: ObjectStore,
    objects: Sequence[StoredObject],
    folder: Path,
    require_intact: Callable[[Path], None],
    choose: Callable[[], Sequence[StoredObject]],
) -> None:
    partial = folder.parent / ".partial" / folder.name
    missing = {each.name: partial / each.name for each in objects if not _is_whole(partial / each.name, each.size)}
    size = sum(each.size for each in objects if each.name in missing)
    if size >= _SAID:
        sys.stderr.write(f"copying {size / 1e9:,.1f} GB of {store.address} to {folder.parent}\n")
    partial.mkdir(parents=True, exist_ok=True)
    (folder.parent / _SOURCE).write_text(f"{store.address}\n")
    names = sorted(missing)
    for begin in range(0, len(names), _TOGETHER):
        some = {name: missing[name] for name in names[begin : begin + _TOGETHER]}
        _get(store, some)
    try:
        if list(choose()) != list(objects) or not all(_is_whole(partial / each.name, each.size) for each in objects):
            msg = f"{store.address} has changed while it was copied.\nStart again when it is complete."
            raise StoreError(msg)
        require_intact(partial)
    except Exception:
        shutil.rmtree(partial.parent)
        raise
    partial.rename(folder)
    partial.parent.rmdir()


def _get(store: ObjectStore, targets: dict[str, Path]) -> None:
    """Copy under other names first, so that each file that has its name is complete."""
    parts = {name: path.with_name(f".{path.name}.part") for name, path in targets.items()}
    for part in parts.values():
        part.parent.mkdir(parents=True, exist_ok=True)
    store.get(parts)
    for name, part in parts.items():
        part.rename(targets[name])


def _is_whole(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process of the node at a time into the block."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
