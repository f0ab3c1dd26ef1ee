"""Read compressed files as a stream, never decompressed to disk."""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from contextlib import contextmanager
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

import zstandard

from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from _typeshed import WriteableBuffer


_DAMAGE = (EOFError, lzma.LZMAError, zlib.error, zstandard.ZstdError)
_BUFFER = 1 << 20
"""Decompressed bytes per call: each call releases the GIL, and waits for it afterwards."""


@contextmanager
def open_decompressed(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Open a file, decompressing it if its name ends in .gz, .xz, .bz2 or .zst; yield its content and the raw file.

    Raises:
        DataError: the file cannot be read, or its format is not that of its name; also raised while it is read.
    """
    opener = OPENERS.get(path.suffix.lower())
    try:
        with path.open("rb") as raw:
            if opener and not raw.peek(1):
                _refuse_empty()
            yield (opener(raw) if opener else raw), raw
    except (*_DAMAGE, OSError) as exc:
        if isinstance(exc, OSError) and exc.errno is not None:  # errors of gzip and bz2 have none
            msg = f"{path} cannot be read: {exc.strerror}."
        else:
            msg = f"{path} cannot be decompressed: {exc}.\nIs it complete, and is it what its suffix says?"
        raise DataError(msg) from exc


def _refuse_empty() -> None:
    msg = "the file is empty, so it is not a compressed file"
    raise EOFError(msg)


class _Frame(Protocol):
    """Decompressor of one frame (a stream in xz and bzip2); a file may hold many frames, one after the other."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def needs_input(self) -> bool: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Wrapped:
    """A decompressor of zlib or zstandard, with the attributes that those of lzma and bz2 have."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame

    @property
    def eof(self) -> bool:
        return bool(self._frame.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._frame.unused_data)


class _Zstandard(_Wrapped):
    needs_input = True

    def __init__(self) -> None:
        # Files of zstd --long=31 need a window of 2 GiB.
        super().__init__(zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj())

    def decompress(self, data: bytes, max_length: int) -> bytes:  # noqa: ARG002  the library returns everything at once
        return bytes(self._frame.decompress(data))


class _Gzip(_Wrapped):
    def __init__(self) -> None:
        super().__init__(zlib.decompressobj(wbits=31))  # gzip's header and checksum
        self._full = False

    @property
    def needs_input(self) -> bool:
        return not self._full

    def decompress(self, data: bytes, max_length: int) -> bytes:
        decompressed: bytes = self._frame.decompress(self._frame.unconsumed_tail + data, max_length)
        # All input may be read while some of it is not yet decompressed.
        self._full = len(decompressed) == max_length
        return decompressed


class _Frames(io.RawIOBase):
    """The frames of a file; each must be complete.

    The libraries' own readers treat garbage after a frame (lzma and bz2) or a truncated frame (zstandard) as the end of
    the file.
    """

    def __init__(self, raw: IO[bytes], new: Callable[[], _Frame], at_once: int, padding: int) -> None:
        self._raw = raw
        self._at_once = at_once
        self._new = new
        self._padding = padding
        self._frame = new()
        self._ready = memoryview(b"")
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        target = memoryview(buffer).cast("B")
        while not self._ready and not self._ended:
            compressed = self._next_frame() if self._frame.eof else self._more()
            self._ended = self._frame.eof
            self._ready = memoryview(b"" if self._ended else self._frame.decompress(compressed, len(target)))
        count = min(len(target), len(self._ready))
        target[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _more(self) -> bytes:
        """Return more input of the current frame."""
        compressed = self._raw.read(self._at_once) if self._frame.needs_input else b""
        if not compressed and self._frame.needs_input:
            msg = "the file ends within a frame"
            raise EOFError(msg)
        return compressed

    def _next_frame(self) -> bytes:
        """Begin the next frame, unless the file ends, and return its first bytes."""
        compressed, zeros = self._frame.unused_data or self._raw.read(self._at_once), 0
        while self._padding and compressed.startswith(b"\0"):
            rest = compressed.lstrip(b"\0")
            zeros += len(compressed) - len(rest)
            compressed = rest or self._raw.read(self._at_once)
        if zeros and zeros % self._padding:
            msg = f"{zeros} zeros after a frame are not padding"
            raise EOFError(msg)
        if compressed:
            self._frame = self._new()
        return compressed


def _opener(new: Callable[[], _Frame], *, at_once: int = 1 << 18, padding: int = 0) -> Callable[[IO[bytes]], IO[bytes]]:
    return lambda raw: cast("IO[bytes]", io.BufferedReader(_Frames(raw, new, at_once, padding), _BUFFER))


OPENERS: dict[str, Callable[[IO[bytes]], Any]] = {
    ".gz": _opener(_Gzip, padding=1),
    ".xz": _opener(partial(lzma.LZMADecompressor, lzma.FORMAT_XZ), padding=4),
    ".bz2": _opener(bz2.BZ2Decompressor),
    ".zst": _opener(_Zstandard, at_once=1 << 15),  # the whole output of one call is in memory
}
"""Openers by suffix."""
