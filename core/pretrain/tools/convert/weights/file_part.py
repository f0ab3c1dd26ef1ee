"""A part of a file, read as if it were a file of its own."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


class FilePart(io.RawIOBase):
    """The bytes [offset, offset + length) of a file."""

    def __init__(self, path: Path, offset: int, length: int) -> None:
        self._file = path.open("rb", buffering=0)
        self._offset = offset
        self._length = length
        self._place = 0

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say that it can be read in any order."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill the buffer as far as there are bytes; return their number."""
        view = memoryview(buffer).cast("B")[: max(0, self._length - self._place)]
        count = os.preadv(self._file.fileno(), [view], self._offset + self._place) if len(view) else 0
        self._place += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move to a place in the part; return it."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._length}[whence]
        self._place = max(0, start + offset)
        return self._place

    def tell(self) -> int:
        """Return the place in the part."""
        return self._place

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()
