"""Lock of a folder that one run writes into, and a heartbeat in its file; other runs are refused, on any machine."""

# The POSIX lock on `.lock` ends with its process, even a killed one, and is not inherited. It holds on other nodes
# where the file system's locks do (NFS, GPFS, Lustre mounted with `flock`). Elsewhere a lock of another machine is
# watched for a while, and taken over if its heartbeat has stopped.

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from pretrain.atomic_files import try_to_write
from pretrain.errors import InUseError, RunError
from pretrain.machine import machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


FILE = ".lock"
BEAT = 5.0  # seconds between two heartbeats
PATIENCE = 30.0  # seconds without a heartbeat after which a lock of another machine counts as abandoned
_APPEARANCE_TIMEOUT = 60.0  # seconds that a network file system gets to show what another host has written
_TAKEN = (errno.EACCES, errno.EAGAIN)


@contextmanager
def held(folder: Path, notify: Callable[[str], object] = click.echo, *, just_made: bool = False) -> Iterator[None]:
    """Make and lock the folder for the duration of the context or of this process."""
    # A folder that is made here, or was `just_made` by the caller, is removed if it stays empty.
    is_new = just_made or not folder.exists()
    descriptor, is_certain, before = _take(folder)
    try:
        if before and not (is_certain and before.get("machine") == machine()):
            with suppress(OSError):
                fcntl.lockf(descriptor, fcntl.LOCK_UN)  # reading the file would end it
            _watch(folder, before, notify)
            _lock(descriptor, folder)
        end = threading.Event()
        since, (host, process) = time.strftime("%Y-%m-%d %H:%M:%S"), this_process()
        record = {"machine": machine(), "host": host, "process": process, "since": since}
        _write(descriptor, {**record, "beat": 0})
        beating = threading.Thread(target=_beat, args=(descriptor, record, end), daemon=True, name="run-lock")
        beating.start()
        try:
            yield
        finally:
            end.set()
            beating.join()
            _release(descriptor, record)
            if is_new and os.listdir(folder) == [FILE]:  # noqa: PTH208  nothing came of the run: leave nothing behind
                with suppress(OSError):
                    (folder / FILE).unlink()  # while it is ours; who has opened it meanwhile opens it again
                    folder.rmdir()
    finally:
        os.close(descriptor)


def require_free(folder: Path) -> None:
    """Check that no run holds the folder and that it can be written, and leave it as it is. Not for its holder."""
    # A lock that this system does not know of, another machine's, is only found by `held`, which watches it.
    try:
        is_there = (folder / FILE).exists()
        if not is_there:
            try_to_write(folder)
    except OSError as error:
        raise _not_writable(folder, error) from error
    if is_there:
        descriptor = _open(folder)
        try:
            _lock(descriptor, folder)
        finally:
            os.close(descriptor)


def remove_unused(folder: Path) -> None:
    """Remove the folder of a run that has ended if nothing came of it: it is empty, or has a lock that nobody holds."""
    with suppress(OSError):
        if os.listdir(folder) == [FILE] and not _read(folder):  # noqa: PTH208
            (folder / FILE).unlink()
        folder.rmdir()


def holder(folder: Path) -> tuple[str, int] | None:
    """Return host and process id of the folder's holder or last holder, None if there was none; not for its holder."""
    record = _content(folder)
    return (record["host"], record["process"]) if record else None


def _take(folder: Path) -> tuple[int, bool, dict[str, Any]]:
    """Open and lock the file; return its descriptor, whether the system has locked it, and what it said before."""
    while True:
        descriptor = _open(folder)
        try:
            before = _read(folder)
            is_certain = _lock(descriptor, folder)
            if _is_there(descriptor, folder):
                return descriptor, is_certain, before
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_there(descriptor: int, folder: Path) -> bool:
    """Say whether the descriptor is of the file that has the name now."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), (folder / FILE).stat())
    return False


def _open(folder: Path) -> int:
    for attempts_left in (2, 1, 0):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and attempts_left:  # a run that failed has just removed its folder
                continue
            raise _not_writable(folder, error) from error
    raise AssertionError


def _not_writable(folder: Path, error: OSError) -> RunError:
    return RunError(f"{folder} cannot be written: {error.strerror}.\nName another folder.")


def _lock(descriptor: int, folder: Path) -> bool:
    """Take the system's lock; return False if this file system has none."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _TAKEN:
            raise _in_use(folder, _read(folder)) from error
        return False
    return True


def _watch(folder: Path, before: dict[str, Any], notify: Callable[[str], object]) -> None:
    """Wait until the lock has not changed for long enough."""
    notify(
        f"{folder}: process {before.get('process')} on {before.get('host')} did not release its lock; "
        f"waiting {PATIENCE:.0f} s for a sign that it still runs"
    )
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        time.sleep(min(1.0, PATIENCE / 10))
        now = _read(folder)
        if not now:
            return
        if now != before:
            raise _in_use(folder, now)


def _in_use(folder: Path, record: dict[str, Any]) -> RunError:
    by = f" by process {record.get('process')} on {record.get('host')}, since {record.get('since')}" if record else ""
    return InUseError(
        f"{folder} is in use{by}.\n"
        "Wait until it ends, stop it (Ctrl-C or SIGTERM: it saves and exits), or name another folder."
    )


def _beat(descriptor: int, record: dict[str, Any], end: threading.Event) -> None:
    number = 0
    while not end.wait(BEAT):
        number += 1
        with suppress(OSError):  # a full disk ends the training where it saves, not here
            _write(descriptor, {**record, "beat": number})


def _write(descriptor: int, record: dict[str, Any]) -> None:
    """Write through the descriptor that holds the lock: closing another descriptor of the file would release it."""
    text = json.dumps(record).encode()
    os.pwrite(descriptor, text, 0)
    os.ftruncate(descriptor, len(text))
    os.fsync(descriptor)


def _release(descriptor: int, record: dict[str, Any]) -> None:
    """Write that no other process needs to wait for a heartbeat; nodes that start late still see whose folder it is."""
    try:
        _write(descriptor, {**record, "released": True})
    except OSError:  # a full disk
        with suppress(OSError):
            os.ftruncate(descriptor, 0)


def _read(folder: Path) -> dict[str, Any]:
    record = _content(folder)
    return {} if record.get("released") else record


def _content(folder: Path) -> dict[str, Any]:
    """Return what is in the file, empty without any; it is opened again, so that NFS reads it again."""
    # Not for the holder: a POSIX lock ends when its process closes any descriptor of the file.
    try:
        record = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def this_process() -> tuple[str, int]:
    """Return host and process id, as the lock of a run directory has them."""
    return socket.gethostname(), os.getpid()


def require_shared(run_dir: Path, first: tuple[str, int]) -> None:
    """Check that the lock of the directory is that of rank 0, whose `this_process` is given; not for rank 0."""
    deadline = time.monotonic() + _APPEARANCE_TIMEOUT
    while holder(run_dir) != first:
        if time.monotonic() > deadline:
            msg = (
                f"{socket.gethostname()} does not see the run directory {run_dir} that rank 0 uses on {first[0]}.\n"
                "All hosts must share it: pass --run-dir with a folder of a file system that all of them see."
            )
            raise RunError(msg)
        time.sleep(1)
