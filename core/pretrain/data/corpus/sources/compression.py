"""Packed files read as a stream, never unpacked to disk."""

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
"""Unpacked bytes at once: whoever unpacks lets other threads run, and waits for them after each call."""


@contextmanager
def unpacked(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Open a file: its content, unpacked where its name ends in .gz, .xz, .bz2 or .zst, and the file on disk itself.

    Raises:
        DataError: the file cannot be read, or is not what its name says. Also when that is found while it is read.
    """
    opener = OPENERS.get(path.suffix.lower())
    try:
        with path.open("rb") as raw:
            if opener and not raw.peek(1):
                _refuse_empty()
            yield (opener(raw) if opener else raw), raw
    except (*_DAMAGE, OSError) as exc:
        if isinstance(exc, OSError) and exc.errno is not None:  # gzip's and bz2's own have none
            msg = f"{path} cannot be read: {exc.strerror}."
        else:
            msg = f"{path} cannot be unpacked: {exc}.\nIs it complete, and is it what its name says?"
        raise DataError(msg) from exc


def _refuse_empty() -> None:
    msg = "the file is empty, and nothing that was packed is"
    raise EOFError(msg)


class _Frame(Protocol):
    """What unpacks one frame (xz and bzip2 say stream), of which a file may hold many, one after the other."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def needs_input(self) -> bool: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Wrapped:
    """An object of zlib or zstandard, with what those of the other libraries say of themselves."""

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
        # zstd --long=31 needs a window of 2 GiB to be read.
        super().__init__(zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj())

    def decompress(self, data: bytes, max_length: int) -> bytes:  # noqa: ARG002  the library gives everything at once
        return bytes(self._frame.decompress(data))


class _Gzip(_Wrapped):
    def __init__(self) -> None:
        super().__init__(zlib.decompressobj(wbits=31))  # gzip's header and checksum
        self._full = False

    @property
    def needs_input(self) -> bool:
        return not self._full

    def decompress(self, data: bytes, max_length: int) -> bytes:
        unpacked: bytes = self._frame.decompress(self._frame.unconsumed_tail + data, max_length)
        # All may be read while some of it is not yet unpacked.
        self._full = len(unpacked) == max_length
        return unpacked


class _Frames(io.RawIOBase):
    """The frames of a file, of which each must be whole.

    The libraries' own readers take what they do not understand after a frame (lzma.py and bz2.py) or a cut within one
    (zstandard) for the end of the file.
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
            packed = self._next_frame() if self._frame.eof else self._more()
            self._ended = self._frame.eof
            self._ready = memoryview(b"" if self._ended else self._frame.decompress(packed, len(target)))
        count = min(len(target), len(self._ready))
        target[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _more(self) -> bytes:
        """Return what the frame goes on with."""
        packed = self._raw.read(self._at_once) if self._frame.needs_input else b""
        if not packed and self._frame.needs_input:
            msg = "the file ends within a frame"
            raise EOFError(msg)
        return packed

    def _next_frame(self) -> bytes:
        """Begin another frame and return what it begins with, unless the file ends."""
        packed, zeros = self._frame.unused_data or self._raw.read(self._at_once), 0
        while self._padding and packed.startswith(b"\0"):
            rest = packed.lstrip(b"\0")
            zeros += len(packed) - len(rest)
            packed = rest or self._raw.read(self._at_once)
        if zeros and zeros % self._padding:
            msg = f"{zeros} zeros after a frame are no padding"
            raise EOFError(msg)
        if packed:
            self._frame = self._new()
        return packed


def _opener(new: Callable[[], _Frame], *, at_once: int = 1 << 18, padding: int = 0) -> Callable[[IO[bytes]], IO[bytes]]:
    return lambda raw: cast("IO[bytes]", io.BufferedReader(_Frames(raw, new, at_once, padding), _BUFFER))


OPENERS: dict[str, Callable[[IO[bytes]], Any]] = {
    ".gz": _opener(_Gzip, padding=1),
    ".xz": _opener(partial(lzma.LZMADecompressor, lzma.FORMAT_XZ), padding=4),
    ".bz2": _opener(bz2.BZ2Decompressor),
    ".zst": _opener(_Zstandard, at_once=1 << 15),  # all that these become is in memory
}
"""By the end of the name."""
