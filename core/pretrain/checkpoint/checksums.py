"""Checksums of a checkpoint: lines of digest, size in bytes and name in `checksums.txt`, the last of those above it."""

from __future__ import annotations

import math
import os
import re
import stat
from dataclasses import dataclass
from heapq import heapreplace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import xxhash

from pretrain.errors import DamageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class FileDigest:
    """Expected content of a file: its digest, hexadecimal, and its size in bytes."""

    digest: str
    size: int


def digest_of(data: bytes) -> str:
    """Return the digest of bytes, hexadecimal.

    XXH3 with 128 bits (https://github.com/Cyan4973/xxHash): not cryptographic, but ten times as fast as SHA-256. It
    takes 3 % of the time that writing to a local disk takes (benchmarks/training/checkpoint_checksums.py).
    """
    return xxhash.xxh3_128_hexdigest(data)


def file_digest(path: Path, read: Callable[[int], None] = lambda count: None) -> FileDigest:  # noqa: ARG005
    """Read a file and return its digest; `read` is called with the bytes of each block."""
    state, buffer, size = xxhash.xxh3_128(), bytearray(_BLOCK), 0
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            state.update(memoryview(buffer)[:count])
            size += count
            read(count)
    return FileDigest(state.hexdigest(), size)


class Recorder:
    """Opens files for writing, and records the digest of each in `files`, by name, when it is closed."""

    def __init__(self) -> None:
        self.files: dict[str, FileDigest] = {}

    def open(self, path: str | Path, mode: str) -> DigestingFile:
        """Open a new file as `open` does; only "wb"."""
        if mode != "wb":
            msg = f"mode {mode!r} is not supported; only 'wb' is"
            raise ValueError(msg)
        return DigestingFile(Path(path), self.files)


class DigestingFile:
    """A file that is written sequentially and digested at the same time."""

    def __init__(self, path: Path, digests: dict[str, FileDigest]) -> None:
        self._file, self._name, self._digests = path.open("wb"), path.name, digests
        self._state = xxhash.xxh3_128()
        self._size = 0

    def write(self, data: Any) -> int:
        """Write bytes or an object with the buffer protocol."""
        self._state.update(data)
        written = self._file.write(data)
        self._size += written
        return written

    def tell(self) -> int:
        """Return how many bytes have been written."""
        return self._size

    def flush(self) -> None:
        """Flush Python's buffer to the operating system."""
        self._file.flush()

    def fileno(self) -> int:
        """Return the descriptor after a flush: megatron-core calls fsync with it, and flushes nothing."""
        self._file.flush()
        return self._file.fileno()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_error: object) -> None:
        self._file.close()
        if kind is None:
            self._digests[self._name] = FileDigest(self._state.hexdigest(), self._size)


FILE = "checksums.txt"
# a line of ours, or the last one
_OURS = re.compile(rf"^[0-9a-f]{{32}} \d+ \S|^\S+ \d+ {re.escape(FILE)}$", re.MULTILINE)
_BEGIN = 1 << 16
_LARGEST_LIST = 1 << 28  # bytes of the longest list that is read: of some million files


@dataclass(frozen=True, slots=True)
class Share:
    """The files that one of `ranks` processes verifies."""

    rank: int = 0
    ranks: int = 1
    up_to: int | None = None  # most bytes read, of the smallest files, tensors last; of others the size is compared
    # Called with the bytes to read and what becomes of them ("verified"); what it returns is called with each part.
    begin: Callable[[int, str], Callable[[int], None]] = lambda total, what: lambda count: None  # noqa: ARG005


WHOLE = Share()
# for looking into a checkpoint of any size: its descriptions are verified, and hardly any tensor
SMALL_FILES = Share(up_to=64_000_000)
_OF_TENSORS = (".distcp", ".safetensors")


def write(directory: Path, files: Mapping[str, FileDigest], leave_out: Iterable[str] = ()) -> None:
    """Write the digests of a checkpoint's files, also those in folders of it; files without a known digest are read."""
    there = {str(entry.relative_to(directory)): entry for entry in directory.rglob("*") if entry.is_file()}
    others = there.keys() - files.keys() - {FILE, *leave_out}
    complete = {**files, **{name: file_digest(there[name]) for name in others}}
    text = "".join(_line(name, complete[name]) for name in sorted(complete)).encode()
    with (directory / FILE).open("wb") as file:
        file.write(text + _line(FILE, FileDigest(digest_of(text), len(text))).encode())
        file.flush()
        os.fsync(file.fileno())


def read(directory: Path) -> dict[str, FileDigest]:
    """Return digest and size of every other file, by name; DamageError: the list is damaged, or leads outside."""
    path = directory / FILE
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST_LIST:  # a device or a pipe would have no end
        raise _damaged(path, "it is not a file, or too large")
    *lines, last = path.read_bytes().splitlines(keepends=True) or [b""]
    text = b"".join(lines)
    if last != _line(FILE, FileDigest(digest_of(text), len(text))).encode():
        raise _damaged(path, "it does not match its own checksum")
    try:
        entries = (line.split(" ", 2) for line in text.decode().splitlines())
        files = {name: FileDigest(digest, int(size)) for digest, size, name in entries}
    except ValueError as error:
        raise _damaged(path, "a line is not a digest, a size and a name") from error
    for name in files:
        if "\0" in name or any(part in {"", ".", ".."} for part in name.split("/")):
            raise _damaged(path, f"it names {name[:80]!r}, which is not a file of its folder")
    return files


def _damaged(path: Path, problem: str) -> DamageError:
    return DamageError(f"{path} is damaged: {problem}.")


def are_there(directory: Path) -> bool:
    """Say whether a folder has checksums of this program, be they readable or not."""
    return os.path.lexists(directory / FILE) and not are_foreign(directory)


def are_foreign(directory: Path) -> bool:
    """Say whether a folder's checksums are another program's: text without a line like ours, even a damaged one."""
    try:
        if not (directory / FILE).is_file():
            return False
        with (directory / FILE).open("rb") as file:
            begin = file.read(_BEGIN)
        text = (begin.rpartition(b"\n")[0] or begin).decode()
    except (OSError, UnicodeDecodeError):
        return False
    return bool(text.strip()) and "\0" not in text and not _OURS.search(text)


def require_intact(directory: Path, share: Share = WHOLE) -> None:
    """Require that a folder has the content that its checksums tell, if it has any; DamageError says what to do."""
    if are_there(directory) and (problem := damage_in_share(directory, share)):
        is_sharded = (directory / "common.pt").exists()
        changed = "" if is_sharded else f"; or remove {directory / FILE} if you changed the file on purpose"
        msg = f"{problem}\nCopy it there again, or take another checkpoint{changed}."
        raise DamageError(msg)


def damage_in_share(directory: Path, share: Share = WHOLE) -> str | None:
    """Verify a share of a checkpoint's files; return what is wrong with the first that is damaged, or None."""
    try:
        files = read(directory)
    except DamageError as error:
        return str(error)
    except OSError as error:
        return f"{directory / FILE} cannot be read: {error.strerror}."
    names = _in_share(files, share)
    to_read = _to_read(files, names, share.up_to)
    done = share.begin(sum(files[name].size for name in to_read), "verified")
    found = (_damage(directory / name, files[name], done if name in to_read else None) for name in names)
    return next(filter(None, found), None)


def bytes_of(directory: Path, share: Share = WHOLE) -> tuple[int, int]:
    """Return how many bytes of content a process verifies, and how many there are; of checksums that can be read."""
    files = read(directory)
    read_ones = _to_read(files, _in_share(files, share), share.up_to)
    return sum(files[name].size for name in read_ones), sum(file.size for file in files.values())


def _line(name: str, file: FileDigest) -> str:
    return f"{file.digest} {file.size} {name}\n"


def _in_share(files: Mapping[str, FileDigest], share: Share) -> list[str]:
    """Give the files, the largest first, each to the rank that has the least; return this rank's."""
    bytes_of = [(0, rank) for rank in range(share.ranks)]  # a heap
    ours = []
    for name in sorted(files, key=lambda name: (-files[name].size, name)):
        size, least = bytes_of[0]
        heapreplace(bytes_of, (size + files[name].size, least))
        if least == share.rank:
            ours.append(name)
    return ours


def _to_read(files: Mapping[str, FileDigest], names: Sequence[str], up_to: int | None) -> set[str]:
    limit = math.inf if up_to is None else up_to
    ordered = sorted(names, key=lambda name: (name.endswith(_OF_TENSORS), files[name].size))
    sums = accumulate(files[name].size for name in ordered)
    return {name for name, size in zip(ordered, sums, strict=True) if size <= limit}


def _damage(path: Path, expected: FileDigest, done: Callable[[int], None] | None) -> str | None:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            return f"{path} is damaged: it is not a file."
        size = found.st_size
        if size != expected.size:
            return f"{path} is damaged: {size} bytes instead of {expected.size}."
        if done and file_digest(path, done) != expected:
            return f"{path} is damaged: its checksum has changed since it was written."
    except FileNotFoundError:
        return f"{path} is missing."
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}."
    return None
