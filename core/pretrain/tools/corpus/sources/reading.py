"""Read sources chunk by chunk, from any position."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from pretrain.tools.corpus.chunks import CHUNK_BYTES, LONGEST_DOCUMENT, START, TOO_LONG, Chunk, Place
from pretrain.tools.corpus.sources.compression import open_decompressed
from pretrain.tools.corpus.sources.tables import read_rows

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from pretrain.tools.corpus.sources.inputs import Source


def read_chunks(
    sources: Sequence[Source], key: str, start: Place = START, *, chunk_bytes: int = CHUNK_BYTES
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
        source, place = sources[number], start if number == start.source else Place(number)
        if source.kind == "lines":
            yield from _lines(source, place, chunk_bytes)
        elif source.kind == "text":
            yield from _text(source, number)
        else:
            yield from read_rows(source, key, place, chunk_bytes)


def _text(source: Source, number: int) -> Iterator[Chunk]:
    with open_decompressed(source.path) as (stream, _):
        content = stream.read(LONGEST_DOCUMENT + 1)
    fault = TOO_LONG if len(content) > LONGEST_DOCUMENT else None
    content = b"" if fault else content
    yield Chunk(source.path, 1, content, source.size, "text", 0, Place(number + 1), number, fault)


def _lines(source: Source, place: Place, chunk_bytes: int) -> Iterator[Chunk]:
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
                following = Place(place.source, offset, line)
                yield Chunk(source.path, first, part, raw.tell(), "lines", begin, following, place.source, fault)


def _find(stream: IO[bytes], source: Source, place: Place) -> tuple[int, int]:
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
