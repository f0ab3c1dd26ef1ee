"""Checksums of a checkpoint: `checksums.txt` has the digest and size of every other file.

A line is a digest (pretrain.checkpoint.digest), a size in bytes and a name; the last line is that of those above it.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from pretrain.checkpoint.digest import FileDigest, digest_of, file_digest
from pretrain.errors import DamageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILE = "checksums.txt"


def write(directory: Path, files: Mapping[str, FileDigest]) -> None:
    """Write the digests of a checkpoint's files; a file that is missing in `files` is read for its digest."""
    others = (entry for entry in directory.iterdir() if entry.name not in files and entry.name != FILE)
    complete = {**files, **{entry.name: file_digest(entry) for entry in others}}
    text = "".join(_line(name, complete[name]) for name in sorted(complete)).encode()
    with (directory / FILE).open("wb") as file:
        file.write(text + _line(FILE, FileDigest(digest_of(text), len(text))).encode())
        file.flush()
        os.fsync(file.fileno())


def read(directory: Path) -> dict[str, FileDigest]:
    """Return the expected digest and size of every other file, by name.

    Raises:
        DamageError: the file of checksums is damaged itself, or names a file outside of the folder.
        OSError: it cannot be read.
    """
    *lines, last = (directory / FILE).read_bytes().splitlines(keepends=True) or [b""]
    text = b"".join(lines)
    if last != _line(FILE, FileDigest(digest_of(text), len(text))).encode():
        msg = f"{directory / FILE} is damaged: it does not match its own checksum."
        raise DamageError(msg)
    try:
        entries = (line.split(" ", 2) for line in text.decode().splitlines())
        files = {name: FileDigest(digest, int(size)) for digest, size, name in entries}
    except ValueError as error:
        msg = f"{directory / FILE} is damaged: a line is not a digest, a size and a name."
        raise DamageError(msg) from error
    if outside := next((name for name in files if name in {"", ".", ".."} or "/" in name or "\0" in name), None):
        msg = f"{directory / FILE} is damaged: it names {outside[:80]!r}, which is no file of its folder."
        raise DamageError(msg)
    return files


def damage_in_share(directory: Path, rank: int, ranks: int) -> str | None:
    """Read this rank's share of a checkpoint's files; return what is wrong with the first that is damaged, or None.

    Every file is in the share of one rank; the shares have about the same size.
    """
    try:
        files = read(directory)
    except DamageError as error:
        return str(error)
    except OSError as error:
        return f"{directory / FILE} cannot be read: {error.strerror}."
    found = (_damage(directory / name, files[name]) for name in _share(files, rank, ranks))
    return next(filter(None, found), None)


def _line(name: str, file: FileDigest) -> str:
    return f"{file.digest} {file.size} {name}\n"


def _share(files: Mapping[str, FileDigest], rank: int, ranks: int) -> list[str]:
    """Give the files, the largest first, each to the rank that has the least; return this rank's."""
    bytes_of = [0] * ranks
    ours = []
    for name in sorted(files, key=lambda name: (-files[name].size, name)):
        least = bytes_of.index(min(bytes_of))
        bytes_of[least] += files[name].size
        if least == rank:
            ours.append(name)
    return ours


def _damage(path: Path, expected: FileDigest) -> str | None:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # a device or a pipe would have no end
            return f"{path} is damaged: it is no file."
        size = found.st_size
        if size != expected.size:
            return f"{path} is damaged: {size} bytes instead of {expected.size}."
        if file_digest(path) != expected:
            return f"{path} is damaged: its checksum has changed since it was written."
    except FileNotFoundError:
        return f"{path} is missing."
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}."
    return None
