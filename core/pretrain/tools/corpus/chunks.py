"""Read inputs chunk by chunk, from any position: whole lines, one text, or rows of a parquet or arrow table."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple

from pretrain.errors import DataError
from pretrain.tools.corpus.compression import OPENERS, open_decompressed

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from pathlib import Path


Kind = Literal["lines", "text", "parquet", "arrow"]
"""Kind of a file: one JSON object a line, one text, or a table."""
CHUNK_BYTES = 1 << 21
"""With smaller chunks a thread that returns from encoding waits for others nearly as long as it has worked."""
LONGEST_DOCUMENT = 1 << 28
"""Bytes; the limit bounds memory. 256 MiB is a hundred times the longest book."""
TOO_LONG = f"the document is longer than {LONGEST_DOCUMENT >> 20} MiB"


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file, or the part of a file of lines that one shard reads.

    Attributes:
        path: the file.
        kind: one JSON object a line; one text; a table.
        size: bytes on disk.
        begin: lines that begin before this byte belong to another shard.
        end: lines that begin at this byte or after it do, too; `size` if the whole file is read.
    """

    path: Path
    kind: Kind
    size: int
    begin: int
    end: int

    @property
    def compressed(self) -> bool:
        """True if it is decompressed while it is read."""
        return self.path.suffix.lower() in OPENERS


class ReadPosition(NamedTuple):
    """Position from which reading continues.

    Attributes:
        source: index of the source.
        offset: byte of the decompressed content of a file of lines, or row of a table.
        line: number of the line there, from 1; 0 for an uncompressed file, in which lines are not counted.
    """

    source: int = 0
    offset: int = 0
    line: int = 1


START = ReadPosition()


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole lines of one file, one text, or rows of a table.

    Attributes:
        path: the file.
        first_line: number of the first line or row, from 1; 0 for an uncompressed file, in which lines are not counted.
        content: the bytes of lines or of a text, or the texts of rows.
        position: bytes of the file read so far, counted on disk (compressed).
        kind: kind of the source.
        begin: position of its first line or row, as `ReadPosition.offset`.
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
    next: ReadPosition = START
    source: int = 0
    fault: str | None = None

    @property
    def size(self) -> int:
        """Bytes of the content; for rows the number of characters, which is nearly the same."""
        if isinstance(self.content, bytes):
            return len(self.content)
        return sum(len(value) if isinstance(value, (bytes, str)) else 1 for value in self.content)


def read_chunks(
    sources: Sequence[InputFile], key: str, start: ReadPosition = START, *, chunk_bytes: int = CHUNK_BYTES
) -> Generator[Chunk]:
    """Yield the content of the sources in order from `start` on, 2 MiB or one document at a time.

    Args:
        sources: read in this order.
        key: the column of a table.
        start: position of the first chunk.
        chunk_bytes: bytes of a chunk, about.

    Raises:
        DataError: a file cannot be read or decompressed, or a table has no such column.
    """
    for number in range(start.source, len(sources)):
        source, place = sources[number], start if number == start.source else ReadPosition(number)
        if source.kind == "lines":
            yield from _lines(source, place, chunk_bytes)
        elif source.kind == "text":
            yield from _text(source, number)
        else:
            yield from read_rows(source, key, place, chunk_bytes)


def _text(source: InputFile, number: int) -> Iterator[Chunk]:
    with open_decompressed(source.path) as (stream, _):
        content = stream.read(LONGEST_DOCUMENT + 1)
    fault = TOO_LONG if len(content) > LONGEST_DOCUMENT else None
    content = b"" if fault else content
    yield Chunk(source.path, 1, content, source.size, "text", 0, ReadPosition(number + 1), number, fault)


def _lines(source: InputFile, place: ReadPosition, chunk_bytes: int) -> Iterator[Chunk]:
    with open_decompressed(source.path) as (stream, raw):
        offset, line = _find(stream, source, place)
        end = None if source.compressed else source.end
        while end is None or offset < end:
            content = stream.read(chunk_bytes if end is None else min(chunk_bytes, end - offset))
            if not content:
                break
            for part, size, fault in _whole_lines(stream, content):
                begin, first, offset = offset, line, offset + size
                line += part.count(b"\n") + bool(fault) if line else 0
                following = ReadPosition(place.source, offset, line)
                yield Chunk(source.path, first, part, raw.tell(), "lines", begin, following, place.source, fault)


def _find(stream: IO[bytes], source: InputFile, place: ReadPosition) -> tuple[int, int]:
    """Go to `place`, or to the first line that the source's part holds; return offset and line number."""
    if place.offset:
        _skip(stream, place.offset, seekable=not source.compressed)
        return place.offset, place.line
    if not source.begin:
        return 0, int(source.compressed)
    stream.seek(source.begin - 1)  # a line may begin exactly at `begin`: then the byte before is a newline
    return source.begin - 1 + _rest_of_line(stream), 0


def _skip(stream: IO[bytes], count: int, *, seekable: bool) -> None:
    if seekable:
        stream.seek(count)
        return
    while count and (passed := len(stream.read(min(count, CHUNK_BYTES)))):
        count -= passed


def _whole_lines(stream: IO[bytes], content: bytes) -> Iterator[tuple[bytes, int, str | None]]:
    """Complete the last line of `content`; yield lines, their size in bytes, and their error or None."""
    begin = content.rfind(b"\n") + 1
    if begin == len(content):
        yield content, len(content), None
        return
    rest = stream.readline(LONGEST_DOCUMENT - len(content) + begin)
    if rest.endswith(b"\n") or len(content) - begin + len(rest) < LONGEST_DOCUMENT:
        yield content + rest, len(content) + len(rest), None
        return
    if begin:
        yield content[:begin], begin, None
    size = len(content) - begin + len(rest)
    del content, rest  # freed while the rest of the line is skipped
    yield b"", size + _rest_of_line(stream), TOO_LONG


def _rest_of_line(stream: IO[bytes]) -> int:
    """Skip the rest of a line and return its size in bytes."""
    size = 0
    while part := stream.readline(CHUNK_BYTES):
        size += len(part)
        if part.endswith(b"\n"):
            break
    return size


_ROWS = 64
"""Rows that are decoded together: few, because one can be long."""


def read_rows(source: InputFile, column: str, place: ReadPosition, chunk_bytes: int) -> Iterator[Chunk]:
    """Yield the values of one column from row `place.offset` on.

    Raises:
        DataError: pyarrow is missing, the file is damaged, or it has no such column.
    """
    rows = 0
    with _opened(source) as table:
        if column not in table.names:
            given = ", ".join(map(repr, table.names))
            msg = f"{source.path} has no column '{column}'; it has {given}.\nName the text's with --json-key."
            raise DataError(msg)
        for batch in map(_undecoded, table.batches(column)):
            skipped = min(max(place.offset - rows, 0), len(batch))
            rows += skipped
            for values in _parts(batch.slice(skipped), chunk_bytes):
                begin, rows = rows, rows + len(values)
                following = ReadPosition(place.source, rows, rows + 1)
                yield Chunk(
                    source.path, begin + 1, values, table.position(rows), source.kind, begin, following, place.source
                )


def _parts(batch: Any, chunk_bytes: int) -> Iterator[list[object]]:
    """Split a batch into lists of about `chunk_bytes`, one row at least."""
    rows = max(1, min(_ROWS, chunk_bytes * len(batch) // max(batch.nbytes, 1)))
    for first in range(0, len(batch), rows):
        yield batch.slice(first, rows).to_pylist()


def _undecoded(batch: Any) -> Any:
    """Return strings as bytes, so that invalid UTF-8 is reported by the parser of documents."""
    import pyarrow as pa  # noqa: PLC0415  an extra

    is_text = pa.types.is_string(batch.type) or pa.types.is_large_string(batch.type)
    return batch.cast(pa.large_binary()) if is_text else batch


class _Parquet:
    def __init__(self, file: Any, size: int) -> None:
        import pyarrow.parquet as pq  # noqa: PLC0415  an extra

        self._table = pq.ParquetFile(file, pre_buffer=False)
        self._size = size
        self.names: list[str] = self._table.schema_arrow.names

    def batches(self, column: str) -> Iterator[Any]:
        for batch in self._table.iter_batches(_ROWS, columns=[column], use_threads=False):
            yield batch.column(0)

    def position(self, row: int) -> int:
        """Return the approximate number of bytes read."""
        return int(self._size * row // max(self._table.metadata.num_rows, 1))


class _Arrow:
    """A stream of batches, as Hugging Face's datasets write it."""

    def __init__(self, file: Any) -> None:
        import pyarrow as pa  # noqa: PLC0415  an extra

        self._file = file
        self._stream = pa.ipc.open_stream(file)
        self.names: list[str] = self._stream.schema.names

    def batches(self, column: str) -> Iterator[Any]:
        place = self.names.index(column)
        for batch in self._stream:
            yield batch.column(place)

    def position(self, row: int) -> int:  # noqa: ARG002  a stream does not know its number of rows
        """Return the number of bytes read."""
        return int(self._file.tell())


@contextmanager
def _opened(source: InputFile) -> Iterator[_Parquet | _Arrow]:
    try:
        import pyarrow as pa  # noqa: PLC0415
    except ImportError as exc:
        msg = f"{source.path} is read by pyarrow, which is not installed.\nInstall it: pip install 'pretrain[data]'"
        raise DataError(msg) from exc
    try:
        with pa.memory_map(str(source.path)) as file:
            yield _Parquet(file, source.size) if source.kind == "parquet" else _Arrow(file)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as exc:
        msg = f"{source.path} cannot be read as {source.kind}: {exc}.\nIs it complete, and is it what its suffix says?"
        raise DataError(msg) from exc
