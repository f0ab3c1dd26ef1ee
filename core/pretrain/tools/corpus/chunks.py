"""Chunks, the units that are read, encoded and written: whole lines, one text, or rows of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

Kind = Literal["lines", "text", "parquet", "arrow"]
"""Kind of a file: one JSON object a line, one text, or a table."""
CHUNK_BYTES = 1 << 21
"""With smaller chunks a thread that returns from encoding waits for others nearly as long as it has worked."""
LONGEST_DOCUMENT = 1 << 28
"""Bytes; the limit bounds memory. 256 MiB is a hundred times the longest book."""
TOO_LONG = f"the document is longer than {LONGEST_DOCUMENT >> 20} MiB"


class Place(NamedTuple):
    """Position from which reading continues.

    Attributes:
        source: index of the source.
        offset: byte of the decompressed content of a file of lines, or row of a table.
        line: number of the line there, from 1; 0 for an uncompressed file, in which lines are not counted.
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
        first_line: number of the first line or row, from 1; 0 for an uncompressed file, in which lines are not counted.
        content: the bytes of lines or of a text, or the texts of rows.
        position: bytes of the file read so far, counted on disk (compressed).
        kind: kind of the source.
        begin: position of its first line or row, as `Place.offset`.
        next: position of the next chunk.
        source: index of the source.
        fault: error found while reading; the chunk then stands for one malformed document.
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
        """Bytes of the content; for rows the number of characters, which is nearly the same."""
        if isinstance(self.content, bytes):
            return len(self.content)
        return sum(len(value) if isinstance(value, (bytes, str)) else 1 for value in self.content)
