"""What is read, encoded and written at a time: whole lines, one text, or rows of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

Kind = Literal["lines", "text", "parquet", "arrow"]
"""What a file is: one JSON object a line, one text, or a table."""
CHUNK_BYTES = 1 << 21
"""Of less, a thread that comes back from encoding waits for others nearly as long as it has worked."""
LONGEST_DOCUMENT = 1 << 28
"""Bytes. Memory is bounded, so one document is: 256 MiB is a hundred times the longest book."""
TOO_LONG = f"the document is longer than {LONGEST_DOCUMENT >> 20} MiB"


class Place(NamedTuple):
    """Where reading goes on.

    Attributes:
        source: index of the source.
        offset: byte of the unpacked content of a file of lines, or row of a table.
        line: number of the line there, from 1; 0 of a plain file, whose lines nobody has counted.
    """

    source: int = 0
    offset: int = 0
    line: int = 1


START = Place()


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole lines of one file, one text, or rows of a table.

    Attributes:
        path: the file.
        first_line: number of the first line or row, from 1; 0 of a plain file, whose lines nobody has counted.
        content: lines or text as they are, or the texts of rows.
        position: bytes of the file read so far, packed where it is packed.
        kind: of the source.
        begin: where it begins, as `Place.offset`.
        next: where the chunk after it begins.
        source: index of the source.
        fault: why it is no document, if reading found that; it stands for one document then.
    """

    path: Path
    first_line: int
    content: bytes | list[object]
    position: int
    kind: Kind = "lines"
    begin: int = 0
    next: Place = START
    source: int = 0
    fault: str | None = None

    @property
    def size(self) -> int:
        """Bytes of the content; of rows their characters, which is nearly the same."""
        if isinstance(self.content, bytes):
            return len(self.content)
        return sum(len(value) if isinstance(value, (bytes, str)) else 1 for value in self.content)
