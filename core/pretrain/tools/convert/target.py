"""Write a checkpoint of planned files: several at once, resumable, under its name only when it is complete."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import threading
import uuid
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pretrain.atomic_files import replacing
from pretrain.checkpoint import checksums
from pretrain.checkpoint.checksums import FileDigest
from pretrain.checkpoint.folder import flush_to_disk
from pretrain.errors import CheckpointError
from pretrain.report.plain_text import size_text
from pretrain.tools.convert.lazy_tensor import LazyTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path


class TargetFile(Protocol):
    """One file that is written as a whole, or again from its beginning."""

    @property
    def name(self) -> str: ...  # noqa: D102  path inside the target
    @property
    def nbytes(self) -> int: ...  # noqa: D102  of the tensors in it
    def write(self, path: Path, written: Callable[[int], None], /) -> dict[str, Any]: ...  # noqa: D102  and flush it


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A checkpoint that is to be written."""

    files: Sequence[TargetFile]  # large ones, written side by side, in any order
    small: Mapping[str, bytes] = field(default_factory=dict)  # content of small files by their path inside the target
    folder: str = ""  # of the one checkpoint inside the target, which gets the checksums; empty: the target itself
    # writes an index, for instance, of the target's folder and, by name, what writing each of `files` returned
    finish: Callable[[Path, Mapping[str, Any]], None] | None = None


def tensors_in(content: Any) -> Iterator[LazyTensor]:
    """Yield the tensors of nested dicts, lists and tuples, depth first."""
    if isinstance(content, LazyTensor):
        yield content
    elif isinstance(content, dict):
        for value in content.values():
            yield from tensors_in(value)
    elif isinstance(content, list | tuple):
        for value in content:
            yield from tensors_in(value)


WORKERS = 4  # files that are written at once; each has one or two blocks in memory
_UNFINISHED = ".unfinished"
_JOURNAL = ".written.json"
_SPARE = 1 << 20  # bytes beyond those of the tensors for which there must be room


def write_target(
    target: Target,
    path: Path,
    identity: str,
    *,
    force: bool = False,
    written: Callable[[int], None] = lambda count: None,  # noqa: ARG005
) -> None:
    """Write all files into `PATH.unfinished`, where a later call of the same identity goes on; rename it at the end."""
    if path.name in {"", ".."}:
        path = path.resolve()
    require_free(path, force=force)
    unfinished = path.with_name(path.name + _UNFINISHED)
    try:
        unfinished.mkdir(parents=True, exist_ok=True)
        with _locked(unfinished):
            journal = _Journal(unfinished, identity)
            _write_files(target, unfinished, journal, written)
            for name, content in target.small.items():
                with replacing(unfinished / name, error=None) as file:
                    file.write(content)
            if target.finish is not None:
                target.finish(unfinished, journal.files)
            _write_checksums(target, unfinished, journal)
            _publish(unfinished, path)
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            reason = f"no room on the disk ({reason})"
        todo = f"Repeat the command to continue from {unfinished}, or remove that folder."
        msg = f"{path} cannot be written: {reason}.\n{todo}"
        raise CheckpointError(msg) from error


def require_free(path: Path, *, force: bool) -> None:
    """Check that a target does not exist yet, or may be replaced."""
    if not force and (path.is_file() or (path.is_dir() and any(path.iterdir()))):
        msg = f"{path} exists already.\nPass --force to replace it, or another name."
        raise CheckpointError(msg)


class _Journal:
    """The files that are written completely, by name, with what writing each returned: its digest, and more."""

    def __init__(self, folder: Path, identity: str) -> None:
        self._path = folder / _JOURNAL
        self._identity = identity
        self._lock = threading.Lock()
        self.files: dict[str, Any] = self._before(folder)
        for entry in () if self.files else folder.iterdir():
            _remove(entry)
        self._write()  # from now on the folder is known as an unfinished target

    def add(self, name: str, result: Any) -> None:
        with self._lock:
            self.files[name] = result
            self._write()

    def _before(self, folder: Path) -> dict[str, Any]:
        if not self._path.is_file():
            if any(folder.iterdir()):
                msg = f"{folder} exists and is not an unfinished conversion.\nRename it, or name another target."
                raise CheckpointError(msg)
            return {}
        try:
            before = json.loads(self._path.read_text())
            return dict(before["files"]) if before["identity"] == self._identity else {}
        except (ValueError, KeyError, TypeError):
            return {}

    def _write(self) -> None:
        with replacing(self._path, error=None) as file:
            file.write(json.dumps({"identity": self._identity, "files": self.files}).encode())


def _write_files(target: Target, folder: Path, journal: _Journal, written: Callable[[int], None]) -> None:
    left = [file for file in target.files if file.name not in journal.files]
    size = sum(file.nbytes for file in left)
    needed, free = _SPARE + size, shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"{size_text(needed)} are needed and {size_text(free)} free", str(folder))
    written(sum(file.nbytes for file in target.files) - size)
    stop = threading.Event()

    def count(size: int) -> None:
        if stop.is_set():
            raise _Stopped
        written(size)

    def write(file: TargetFile) -> None:
        if stop.is_set():
            return
        path = folder / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        journal.add(file.name, file.write(path, count))

    with ThreadPoolExecutor(WORKERS) as pool:
        tasks = [pool.submit(write, file) for file in left]
        try:
            done, _ = wait(tasks, return_when=FIRST_EXCEPTION)
        except BaseException:
            stop.set()
            raise
        stop.set()
        for task in done:
            task.result()


class _Stopped(Exception):  # noqa: N818  no error: another file failed
    """Ends the writing of a file after another one has failed."""


def _write_checksums(target: Target, unfinished: Path, journal: _Journal) -> None:
    for left in unfinished.rglob(".*.partial"):  # of a killed process (pretrain.atomic_files)
        left.unlink()
    folder = unfinished / target.folder
    digests = {
        str((unfinished / name).relative_to(folder)): FileDigest(each["digest"], each["size"])
        for name, each in journal.files.items()
    }
    checksums.write(folder, digests, leave_out={_JOURNAL})


def _publish(unfinished: Path, path: Path) -> None:
    """Flush the folder, and give it its name; what had it before is removed afterwards."""
    (unfinished / _JOURNAL).unlink()
    flush_to_disk(unfinished, *(entry for entry in unfinished.rglob("*") if entry.is_dir()))
    old = None
    if path.is_symlink() or path.exists():
        old = path.with_name(f".{path.name}.{uuid.uuid4().hex}.replaced")
        path.rename(old)
    unfinished.rename(path)
    if old is not None:
        _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder, so that no second process writes into it; the lock ends with the process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        msg = f"{folder} is being written by another process.\nWait for it, or name another target."
        raise CheckpointError(msg) from error
    finally:
        os.close(descriptor)
