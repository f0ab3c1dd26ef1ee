"""Parse documents, lines of JSON with the text under one key, plain texts and rows of tables, and clean them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import orjson

from pretrain.data.token_files.writing import Encoded
from pretrain.errors import DataError
from pretrain.tools.corpus.chunks import LONGEST_DOCUMENT, TOO_LONG, read_chunks
from pretrain.tools.corpus.inputs import find_sources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from pretrain.tools.corpus.chunks import Chunk

_DIGEST_BYTES = 16  # among 10^12 different documents two have the same digest with a probability below 10^-14


@dataclass(slots=True)
class Faults:
    """Malformed documents of a chunk."""

    skip: bool = False  # leave them out and count them; otherwise the first one is raised
    count: int = 0
    first: tuple[int, str] | None = None  # line of the first one in the chunk, from 0, and its error

    def add(self, chunk: Chunk, number: int, fault: str) -> None:
        """Count one, or raise it. Only the first is located, because that can mean reading the file up to there."""
        if not self.skip:
            msg = f"{where(chunk, number)}: {fault}"
            raise DataError(msg)
        self.count += 1
        self.first = self.first or (number, fault.partition("\n")[0])


def read_documents(chunk: Chunk, key: str, *, skip: bool = False) -> tuple[list[list[str]], Faults]:
    """Return the documents of a chunk, each a list of sentences, and its faults; empty lines are skipped."""
    faults = Faults(skip)
    texts: list[list[str]] = []
    if chunk.fault:
        faults.add(chunk, 0, f"{chunk.fault}.")
        return texts, faults
    for number, entry in _entries(chunk):
        try:
            texts.append(_sentences(entry, chunk, key))
        except _FaultError as fault:
            faults.add(chunk, number, str(fault))
    return texts, faults


def read_texts(paths: Sequence[Path], key: str, *, skipped: Callable[[int, str], None] | None = None) -> Iterator[str]:
    """Yield texts: sentences of JSONL and tables; parts of about 2 MiB of other files.

    `skipped` is called after a chunk with the number of malformed documents left out, and the first one's error; None:
    the first one is raised as a DataError.
    """
    for source in find_sources(paths, otherwise="text"):
        as_lines = replace(source, kind="lines") if source.kind == "text" else source
        for chunk in read_chunks([as_lines], key):
            # A text of any length is read like lines, a part at a time.
            part = replace(chunk, kind="text") if source.kind == "text" else chunk
            documents, faults = read_documents(part, key, skip=skipped is not None)
            if skipped is not None and faults.first is not None:
                number, fault = faults.first
                skipped(faults.count, f"{where(part, number)}: {fault}")
            yield from chain.from_iterable(documents)


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
            try:
                part.encode()
            except UnicodeEncodeError as exc:  # a \ud800 alone is valid JSON, but no tokenizer accepts it
                msg = f"the text has half of a surrogate pair at character {exc.start}, which is not valid Unicode."
                raise _FaultError(msg) from exc
    return entry


def _decoded(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as exc:
        msg = (
            f"not UTF-8: {exc.reason} at byte {exc.start}.\n"
            "Convert it, as by `iconv -f latin1 -t utf8`, or remove it; --on-error skip of `pretrain data build` and "
            "`pretrain tokenizer train` leaves such texts out."
        )
        raise _FaultError(msg) from exc


def where(chunk: Chunk, number: int = 0) -> str:
    """Return "file:line" of a line of `chunk`, by default its first."""
    if chunk.first_line:
        return f"{chunk.path}:{chunk.first_line + number}"
    count, left = 1, chunk.begin
    with chunk.path.open("rb") as stream:  # lines of an uncompressed file are counted only now
        while left and (part := stream.read(min(left, 1 << 20))):
            count += part.count(b"\n")
            left -= len(part)
    return f"{chunk.path}:{count + number}"


@dataclass(frozen=True, slots=True)
class Cleaning:
    """Cleaning steps, applied in this order; none by default."""

    fix_text: bool = False  # repair mojibake, HTML entities and control characters with ftfy's `fix_text`
    min_length: int = 0  # in characters
    drop_duplicates: bool = False  # leave out documents with exactly the text of an earlier one


NO_CLEANING = Cleaning()


def clean(documents: list[list[str]], cleaning: Cleaning) -> list[list[str]]:
    """Return the documents with repaired characters, without the short ones."""
    if cleaning.fix_text:
        fix = text_fixer()
        documents = [[fix(text) for text in document] for document in documents]
    return [document for document in documents if sum(map(len, document)) >= cleaning.min_length]


def text_fixer() -> Callable[[str], str]:
    """Return ftfy's `fix_text`."""
    try:
        import ftfy  # noqa: PLC0415  an extra
    except ImportError as exc:
        msg = "--clean repairs texts with ftfy, which is not installed.\nInstall it: pip install 'pretrain[data]'"
        raise DataError(msg) from exc
    fix: Callable[[str], str] = ftfy.fix_text
    return fix


def digests_of(documents: Sequence[Sequence[str]]) -> list[bytes]:
    """Return a digest of each document; equal documents have equal digests."""
    digests = []
    for document in documents:
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for text in document:
            content = text.encode()
            digest.update(b"%d:" % len(content))  # ["ab", "c"] is not ["a", "bc"]
            digest.update(content)
        digests.append(digest.digest())
    return digests


class SeenDocuments:
    """The digests of all documents so far: about 100 bytes of memory each."""

    def __init__(self, digests: bytes = b"") -> None:
        places = range(0, len(digests), _DIGEST_BYTES)
        self._seen = {digests[place : place + _DIGEST_BYTES] for place in places}

    def add(self, digests: Sequence[bytes]) -> npt.NDArray[np.bool_]:
        """Return True for each new document, [documents], and remember them."""
        new = np.zeros(len(digests), bool)
        for number, digest in enumerate(digests):
            new[number] = digest not in self._seen
            self._seen.add(digest)
        return new


def select_documents(encoded: Encoded, documents: npt.NDArray[np.bool_]) -> Encoded:
    """Return the documents of `encoded` that are True in `documents`."""
    if documents.all():
        return encoded
    sequences = np.repeat(documents, encoded.sequences)
    tokens = np.repeat(sequences, encoded.lengths)
    return Encoded(encoded.tokens[tokens], encoded.lengths[sequences], encoded.sequences[documents])
