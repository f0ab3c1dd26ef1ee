"""Reading JSONL files: one JSON object a line, its text under one key."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_OPENERS: dict[str, Callable[[IO[bytes]], Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
_DAMAGE = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error)
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole lines of one file.

    Attributes:
        path: the file.
        first_line: number of the first line, from 1.
        content: the lines as they are.
        position: bytes of the file read so far, compressed where it is compressed.
    """

    path: Path
    first_line: int
    content: bytes
    position: int


def read_chunks(paths: Sequence[Path], *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """Yield the lines of the files in order, a mebibyte or one line at a time; .gz, .xz and .bz2 are unpacked.

    Raises:
        DataError: a file cannot be read or unpacked.
    """
    for path in paths:
        try:
            with path.open("rb") as raw:
                yield from _chunks_of(path, raw, chunk_bytes)
        except _DAMAGE as exc:
            msg = f"{path} cannot be unpacked: {exc}.\nIs it complete, and is it what its name says?"
            raise DataError(msg) from exc
        except OSError as exc:
            msg = f"{path} cannot be read: {exc.strerror or exc}."
            raise DataError(msg) from exc


def texts_of(chunk: Chunk, key: str) -> list[list[str]]:
    """Return the documents of a chunk, each as its sentences; a document whose text is one string has one.

    Empty lines are left out.

    Raises:
        DataError: a line is not a JSON object in UTF-8 with text under `key`; names the file and the line.
    """
    lines = enumerate(chunk.content.split(b"\n"), chunk.first_line)
    return [_texts_of_line(line, key, f"{chunk.path}:{number}") for number, line in lines if line.strip()]


def read_texts(paths: Iterable[Path], key: str) -> Iterator[str]:
    """Yield texts: of .jsonl and .json files the text of each line, of other files parts of about a mebibyte."""
    for path in paths:
        kind = Path(path.stem).suffix if path.suffix in _OPENERS else path.suffix
        for chunk in read_chunks([path]):
            if kind in {".jsonl", ".json", ".ndjson"}:
                yield from (text for document in texts_of(chunk, key) for text in document)
            else:
                yield _decoded(chunk.content, f"{path}:{chunk.first_line}")


def _chunks_of(path: Path, raw: IO[bytes], chunk_bytes: int) -> Iterator[Chunk]:
    opener = _OPENERS.get(path.suffix)
    stream = cast("IO[bytes]", opener(raw)) if opener else raw
    line = 1
    while content := stream.read(chunk_bytes):
        content += stream.readline()
        yield Chunk(path, line, content, raw.tell())
        line += content.count(b"\n")


def _decoded(content: bytes, where: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as exc:
        msg = f"{where}: not UTF-8: {exc.reason} at byte {exc.start}."
        raise DataError(msg) from exc


def _texts_of_line(line: bytes, key: str, where: str) -> list[str]:
    content = _decoded(line, where)
    try:
        entry = json.loads(content)
    except (ValueError, RecursionError) as exc:
        msg = f"{where}: not JSON: {exc}.\nThe input is JSONL: one object a line, as in {{'{key}': 'Once upon ...'}}."
        raise DataError(msg) from exc
    texts = _texts_of_entry(entry, key, where)
    # A \ud800 without its other half is valid JSON, but no text: no tokenizer takes it.
    if "\\ud" in content or "\\uD" in content:
        _check_surrogates(texts, where)
    return texts


def _texts_of_entry(entry: object, key: str, where: str) -> list[str]:
    if not isinstance(entry, dict) or key not in entry:
        given = f"the keys {', '.join(map(repr, entry)) or '(none)'}" if isinstance(entry, dict) else f"{entry!r:.40}"
        msg = f"{where}: no key '{key}'; the line has {given}.\nName the key that holds the text with --json-key."
        raise DataError(msg)
    text = entry[key]
    texts = text if isinstance(text, list) else [text]
    if not all(isinstance(part, str) for part in texts):
        msg = f"{where}: '{key}' is {text!r:.40}; it must be a string, or a list of strings."
        raise DataError(msg)
    return texts


def _check_surrogates(texts: list[str], where: str) -> None:
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as exc:
            msg = f"{where}: the text holds half of a surrogate pair at character {exc.start}, which is not Unicode."
            raise DataError(msg) from exc
