"""Packed files read as a stream, never unpacked to disk."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, cast

import zstandard

from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from _typeshed import WriteableBuffer

_DAMAGE = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error, zstandard.ZstdError)
_READ_AT_ONCE = 1 << 15
"""Packed bytes. They can become a thousand times as many, all of them in memory."""
_BUFFER = 1 << 20


@contextmanager
def unpacked(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Open a file: its content, unpacked where its name ends in .gz, .xz, .bz2 or .zst, and the file on disk itself.

    Raises:
        DataError: the file cannot be read, or is not what its name says. Also when that is found while it is read.
    """
    opener = OPENERS.get(path.suffix.lower())
    try:
        with path.open("rb") as raw:
            yield (opener(raw) if opener else raw), raw
    except _DAMAGE as exc:
        msg = f"{path} cannot be unpacked: {exc}.\nIs it complete, and is it what its name says?"
        raise DataError(msg) from exc
    except OSError as exc:
        msg = f"{path} cannot be read: {exc.strerror or exc}."
        raise DataError(msg) from exc


class _Zstandard(io.RawIOBase):
    """The frames of a .zst file. The library's own reader takes a file that is cut off for one that ends."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        # zstd --long=31 needs a window of 2 GiB to be read.
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
        self._frame = self._decompressor.decompressobj()
        self._begun = False
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        while not self._ready:
            packed = self._frame.unused_data if self._frame.eof else b""
            packed = packed or self._raw.read(_READ_AT_ONCE)
            if not packed:
                self._check_end()
                return 0
            if self._frame.eof:
                self._frame = self._decompressor.decompressobj()
            self._begun = True
            self._ready = memoryview(self._frame.decompress(packed))
        target = memoryview(buffer).cast("B")
        count = min(len(target), len(self._ready))
        target[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _check_end(self) -> None:
        if self._begun and not self._frame.eof:
            msg = "the file ends within a frame"
            raise EOFError(msg)


def _open_zstandard(raw: IO[bytes]) -> IO[bytes]:
    return cast("IO[bytes]", io.BufferedReader(_Zstandard(raw), _BUFFER))


OPENERS: dict[str, Callable[[IO[bytes]], Any]] = {
    ".gz": gzip.open,
    ".xz": lzma.open,
    ".bz2": bz2.open,
    ".zst": _open_zstandard,
}
"""By the end of the name."""
