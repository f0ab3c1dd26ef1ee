"""Parse documents: lines of JSON with the text under one key, plain texts, and rows of tables."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import orjson

from pretrain.errors import DataError
from pretrain.tools.corpus.chunks import LONGEST_DOCUMENT, TOO_LONG, read_chunks
from pretrain.tools.corpus.inputs import find_sources

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pretrain.tools.corpus.chunks import Chunk


@dataclass(slots=True)
class Faults:
    """Malformed documents of a chunk.

    Attributes:
        skip: leave them out and count them; otherwise the first one is raised.
        count: number of malformed documents.
        first: line of the first one in the chunk, from 0, and its error.
    """

    skip: bool = False
    count: int = 0
    first: tuple[int, str] | None = None

    def add(self, chunk: Chunk, number: int, fault: str) -> None:
        """Count one, or raise it. Only the first is located, because that can mean reading the file up to there."""
        if not self.skip:
            msg = f"{where(chunk, number)}: {fault}"
            raise DataError(msg)
        self.count += 1
        self.first = self.first or (number, fault.partition("\n")[0])


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of a chunk, each a list of sentences; a document with a single string has one sentence."""

    texts: list[list[str]]
    faults: Faults = field(default_factory=Faults)


def read_documents(chunk: Chunk, key: str, *, skip: bool = False) -> Documents:
    """Return the documents of a chunk; empty lines are skipped.

    Raises:
        DataError: unless `skip`, if a line is not a JSON object in UTF-8 with text under `key`, or a row holds no text;
            names the file and the line.
    """
    faults = Faults(skip)
    if chunk.fault:
        faults.add(chunk, 0, f"{chunk.fault}.")
        return Documents([], faults)
    texts = []
    for number, entry in _entries(chunk):
        try:
            texts.append(_sentences(entry, chunk, key))
        except _FaultError as fault:
            faults.add(chunk, number, str(fault))
    return Documents(texts, faults)


def read_texts(paths: Sequence[Path], key: str) -> Iterator[str]:
    """Yield texts: sentences of JSONL and tables; parts of about 2 MiB of other files.

    Raises:
        DataError: a file cannot be read, or holds a malformed document.
    """
    for source in find_sources(paths, otherwise="text"):
        as_lines = replace(source, kind="lines") if source.kind == "text" else source
        for chunk in read_chunks([as_lines], key):
            # A text of any length is read like lines, a part at a time.
            found = read_documents(replace(chunk, kind="text") if source.kind == "text" else chunk, key)
            yield from (text for document in found.texts for text in document)


class _FaultError(Exception):
    """Error of a malformed document, without its location."""


def _entries(chunk: Chunk) -> Iterator[tuple[int, object]]:
    if isinstance(chunk.content, list):
        yield from enumerate(chunk.content)
    elif chunk.kind == "text":
        yield 0, chunk.content
    else:
        lines = enumerate(chunk.content.split(b"\n"))
        yield from ((number, line) for number, line in lines if line and not line.isspace())


def _sentences(entry: object, chunk: Chunk, key: str) -> list[str]:
    value = entry
    if isinstance(entry, bytes):
        value = _value(entry, key) if chunk.kind == "lines" else _decoded(entry)
    if isinstance(value, str):
        sentences = [value]
    elif isinstance(value, list) and all(isinstance(part, str) for part in value):
        sentences = value
    else:
        msg = f"'{key}' is {value!r:.40}; it must be a string, or a list of strings."
        raise _FaultError(msg)
    if sum(map(len, sentences)) > LONGEST_DOCUMENT:
        msg = f"{TOO_LONG}."
        raise _FaultError(msg)
    return sentences


def _value(line: bytes, key: str) -> object:
    try:
        entry = orjson.loads(line)
    except orjson.JSONDecodeError:
        # Python's parser accepts more (NaN, half a surrogate pair), as Megatron's tool does, and reports the error.
        entry = _read_with_json(line, key)
    if not isinstance(entry, dict) or key not in entry:
        given = f"the keys {', '.join(map(repr, entry)) or '(none)'}" if isinstance(entry, dict) else f"{entry!r:.40}"
        msg = f"no key '{key}'; the line has {given:.400}.\nName the key that holds the text with --json-key."
        raise _FaultError(msg)
    return entry[key]


def _read_with_json(line: bytes, key: str) -> object:
    try:
        entry = json.loads(_decoded(line))
    except (ValueError, RecursionError) as exc:
        msg = f"not JSON: {exc}.\nThe input is JSONL: one object a line, as in {json.dumps({key: 'Once upon ...'})}."
        raise _FaultError(msg) from exc
    text = entry.get(key) if isinstance(entry, dict) else None
    for part in text if isinstance(text, list) else [text]:
        if isinstance(part, str):
            _check_surrogates(part)
    return entry


def _check_surrogates(text: str) -> None:
    r"""Reject a \ud800 without its other half: it is valid JSON, but not Unicode, and no tokenizer accepts it."""
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        msg = f"the text holds half of a surrogate pair at character {exc.start}, which is not Unicode."
        raise _FaultError(msg) from exc


def _decoded(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as exc:
        msg = f"not UTF-8: {exc.reason} at byte {exc.start}."
        raise _FaultError(msg) from exc


def where(chunk: Chunk, number: int = 0) -> str:
    """Return "file:line" of a line of `chunk`, by default its first."""
    # Lines of an uncompressed file are counted only now, when their number is needed.
    first = chunk.first_line or 1 + _lines_before(chunk)
    return f"{chunk.path}:{first + number}"


def _lines_before(chunk: Chunk) -> int:
    count, left = 0, chunk.begin
    with chunk.path.open("rb") as stream:
        while left and (part := stream.read(min(left, 1 << 20))):
            count += part.count(b"\n")
            left -= len(part)
    return count
