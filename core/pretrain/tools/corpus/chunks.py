"""Read inputs chunk by chunk, from any position: whole lines, one text, or rows of a parquet or arrow table."""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple, cast

import zstandard

from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from pathlib import Path

    from _typeshed import WriteableBuffer

Kind = Literal["lines", "text", "parquet", "arrow"]  # one JSON object a line, one text, or a table
# with smaller chunks a thread that returns from encoding waits for others nearly as long as it has worked
CHUNK_BYTES = 1 << 21
LONGEST_DOCUMENT = 1 << 28  # bytes; the limit bounds memory. 256 MiB is a hundred times the longest book.
_ROWS = 64  # that are decoded together: few, because one can be long
TOO_LONG = f"the document is longer than {LONGEST_DOCUMENT >> 20} MiB"
_DAMAGE = (EOFError, lzma.LZMAError, zlib.error, zstandard.ZstdError)
_BUFFER = 1 << 20  # decompressed bytes per call: each call releases the GIL, and waits for it afterwards


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file, or the part of a file of lines that one shard reads."""

    path: Path
    kind: Kind
    size: int  # bytes on disk
    begin: int  # lines that begin before this byte belong to another shard
    end: int  # lines that begin at this byte or after it do, too; `size` if the whole file is read

    @property
    def compressed(self) -> bool:
        """Whether it is decompressed while it is read."""
        return self.path.suffix.lower() in OPENERS


class ReadPosition(NamedTuple):
    """Position from which reading continues."""

    source: int = 0  # its index
    offset: int = 0  # byte of the decompressed content of a file of lines, or row of a table
    line: int = 1  # number of the line there, from 1; 0 for an uncompressed file, in which lines are not counted


START = ReadPosition()


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole lines of one file, one text, or rows of a table."""

    path: Path
    first_line: int  # or row, from 1; 0 for an uncompressed file, in which lines are not counted
    content: bytes | list[object]  # the bytes of lines or of a text, or the texts of rows
    position: int  # bytes of the file read so far, counted on disk (compressed)
    kind: Kind = "lines"
    begin: int = 0  # position of its first line or row, as `ReadPosition.offset`
    next: ReadPosition = START  # position of the next chunk
    source: int = 0  # index of the source
    fault: str | None = None  # error found while reading; the chunk then stands for one malformed document

    @property
    def size(self) -> int:
        """Bytes of the content; for rows the number of characters, which is nearly the same."""
        if isinstance(self.content, bytes):
            return len(self.content)
        return sum(len(value) if isinstance(value, (bytes, str)) else 1 for value in self.content)


def read_chunks(
    sources: Sequence[InputFile], key: str, start: ReadPosition = START, *, chunk_bytes: int = CHUNK_BYTES
) -> Generator[Chunk]:
    """Yield the content of the sources in order from `start` on, 2 MiB or one document at a time."""
    for number in range(start.source, len(sources)):
        source, place = sources[number], start if number == start.source else ReadPosition(number)
        if source.kind == "lines":
            yield from _lines(source, place, chunk_bytes)
        elif source.kind == "text":
            yield from _text(source, number)
        else:
            yield from _read_rows(source, key, place, chunk_bytes)


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
        left = place.offset if source.compressed else 0
        while left and (passed := len(stream.read(min(left, CHUNK_BYTES)))):
            left -= passed
        if not source.compressed:
            stream.seek(place.offset)
        return place.offset, place.line
    if not source.begin:
        return 0, int(source.compressed)
    stream.seek(source.begin - 1)  # a line may begin exactly at `begin`: then the byte before is a newline
    return source.begin - 1 + _rest_of_line(stream), 0


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
    """Skip the rest of a line; return its bytes."""
    size = 0
    while part := stream.readline(CHUNK_BYTES):
        size += len(part)
        if part.endswith(b"\n"):
            break
    return size


def _read_rows(source: InputFile, column: str, place: ReadPosition, chunk_bytes: int) -> Iterator[Chunk]:
    rows = 0
    with _opened(source) as table:
        if column not in table.names:
            given = ", ".join(map(repr, table.names))
            msg = f"{source.path} has no column '{column}'; it has {given}.\nName the text column with --json-key."
            raise DataError(msg)
        for batch in map(_undecoded, table.batches(column)):
            skipped = min(max(place.offset - rows, 0), len(batch))
            rows += skipped
            for values in _parts(batch.slice(skipped), chunk_bytes):
                begin, rows = rows, rows + len(values)
                following, read = ReadPosition(place.source, rows, rows + 1), table.position(rows)
                yield Chunk(source.path, begin + 1, values, read, source.kind, begin, following, place.source)


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


class _Table(NamedTuple):
    names: list[str]
    batches: Callable[[str], Iterator[Any]]  # of a column
    position: Callable[[int], int]  # bytes read up to a row, approximately


def _parquet(file: Any, size: int) -> _Table:
    import pyarrow.parquet as pq  # noqa: PLC0415  an extra

    table = pq.ParquetFile(file, pre_buffer=False)

    def batches(column: str) -> Iterator[Any]:
        return (batch.column(0) for batch in table.iter_batches(_ROWS, columns=[column], use_threads=False))

    return _Table(table.schema_arrow.names, batches, lambda row: size * row // max(table.metadata.num_rows, 1))


def _arrow(file: Any) -> _Table:
    """Open a stream of batches, as Hugging Face's datasets write it; it does not know its number of rows."""
    import pyarrow as pa  # noqa: PLC0415  an extra

    stream = pa.ipc.open_stream(file)
    names = stream.schema.names
    return _Table(names, lambda column: (each.column(names.index(column)) for each in stream), lambda _: file.tell())


@contextmanager
def _opened(source: InputFile) -> Iterator[_Table]:
    try:
        import pyarrow as pa  # noqa: PLC0415
    except ImportError as exc:
        msg = f"{source.path} is read by pyarrow, which is not installed.\nInstall it: pip install 'pretrain[data]'"
        raise DataError(msg) from exc
    try:
        with pa.memory_map(str(source.path)) as file:
            yield _parquet(file, source.size) if source.kind == "parquet" else _arrow(file)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as exc:
        msg = f"{source.path} cannot be read as {source.kind}: {exc}.\nIs it complete, and its suffix right?"
        raise DataError(msg) from exc


@contextmanager
def open_decompressed(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Open a file, decompressing it if its name ends in .gz, .xz, .bz2 or .zst; yield its content and the raw file."""
    opener = OPENERS.get(path.suffix.lower())
    try:
        with path.open("rb") as raw:
            if opener and not raw.peek(1):
                msg = "the file is empty, so it is not a compressed file"
                raise EOFError(msg)
            yield (opener(raw) if opener else raw), raw
    except (*_DAMAGE, OSError) as exc:
        if isinstance(exc, OSError) and exc.errno is not None:  # errors of gzip and bz2 have none
            msg = f"{path} cannot be read: {exc.strerror}."
        else:
            msg = f"{path} cannot be decompressed: {exc}.\nIs it complete, and its suffix right?"
        raise DataError(msg) from exc


class _Zlib:
    """A decompressor of gzip or zstandard, with the attributes that those of lzma and bz2 have."""

    needs_input = True

    def __init__(self) -> None:
        self._frame: Any = zlib.decompressobj(wbits=31)  # gzip's header and checksum

    @property
    def eof(self) -> bool:
        return bool(self._frame.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._frame.unused_data)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        decompressed: bytes = self._frame.decompress(self._frame.unconsumed_tail + data, max_length)
        self.needs_input = len(decompressed) < max_length  # all may be read while some of it is not yet decompressed
        return decompressed


class _Zstandard(_Zlib):
    def __init__(self) -> None:
        # files of zstd --long=31 need a window of 2 GiB
        self._frame = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()

    def decompress(self, data: bytes, max_length: int) -> bytes:  # noqa: ARG002  the library returns everything at once
        return bytes(self._frame.decompress(data))


class _Frames(io.RawIOBase):
    """The frames of a file, one after the other; each must be complete. `new` makes the decompressor of one.

    The libraries take garbage after a frame (lzma, bz2) or a truncated frame (zstandard) for the end of the file.
    """

    def __init__(self, raw: IO[bytes], new: Callable[[], Any], at_once: int, padding: int) -> None:
        self._raw, self._new, self._at_once, self._padding = raw, new, at_once, padding
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
        compressed = self._raw.read(self._at_once) if self._frame.needs_input else b""
        if not compressed and self._frame.needs_input:
            msg = "the file ends within a frame"
            raise EOFError(msg)
        return compressed

    def _next_frame(self) -> bytes:
        """Begin the next frame, unless the file ends, and return its first bytes."""
        compressed: bytes = self._frame.unused_data or self._raw.read(self._at_once)
        zeros = 0
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


def _opener(new: Callable[[], Any], *, at_once: int = 1 << 18, padding: int = 0) -> Callable[[IO[bytes]], IO[bytes]]:
    return lambda raw: cast("IO[bytes]", io.BufferedReader(_Frames(raw, new, at_once, padding), _BUFFER))


# by suffix
OPENERS: dict[str, Callable[[IO[bytes]], Any]] = {
    ".gz": _opener(_Zlib, padding=1),
    ".xz": _opener(partial(lzma.LZMADecompressor, lzma.FORMAT_XZ), padding=4),
    ".bz2": _opener(bz2.BZ2Decompressor),
    ".zst": _opener(_Zstandard, at_once=1 << 15),  # the whole output of one call is in memory
}
