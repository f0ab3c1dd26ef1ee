"""Encode chunks to token ids on one or more cores, in order and in bounded memory."""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from pretrain.data.prefetch import exit_with_parent
from pretrain.data.token_files.writing import Encoded, token_dtype
from pretrain.data.tokenizers import load_tokenizer
from pretrain.data.tokenizers.load import tokenizer_file
from pretrain.data.tokenizers.tokenizer import end_token, is_panic
from pretrain.errors import DataError
from pretrain.tools.corpus.documents import NO_CLEANING, clean, digests_of, read_documents, where
from pretrain.tools.corpus.reference_comparison import comparisons_of, parts_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from pretrain.data.tokenizers import Tokenizer
    from pretrain.data.tokenizers.tokenizer import NamesTokenizer
    from pretrain.tools.corpus.chunks import Chunk
    from pretrain.tools.corpus.documents import Cleaning, Faults
    from pretrain.tools.corpus.reference_comparison import Part, TextComparison


class Encoder(NamedTuple):
    """The tokenizers that encode a corpus: the fastest that gives the right ids, and if it is another the reference."""

    tokenizer: Tokenizer  # with a reference, one that releases the GIL
    reference: Callable[[], Tokenizer] | None


def load_encoder(section: NamesTokenizer, *, reference_only: bool = False) -> Encoder:
    """Load the tokenizer that `section` names, in gigatoken if it supports it, unless `reference_only`."""
    if section.type == "bytes" or reference_only:
        return Encoder(load_tokenizer(section), None)
    from pretrain.tools.corpus import fast_tokenizer  # noqa: PLC0415  slow import, not needed for small corpora

    if section.type == "gpt2":
        found = fast_tokenizer.gpt2(tokenizer_file(section, "vocab_file"), tokenizer_file(section, "merge_file"))
    else:
        found = fast_tokenizer.huggingface(tokenizer_file(section, "file"))
    return Encoder(found, partial(load_tokenizer, section)) if found else Encoder(load_tokenizer(section), None)


@dataclass(frozen=True, slots=True)
class Encoding:
    """Options of the conversion from documents to ids."""

    json_key: str = "text"  # or of a table the column
    append_eod: bool = False
    skip_faults: bool = False
    cleaning: Cleaning = NO_CLEANING


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """Result of encoding a chunk."""

    encoded: Encoded
    faults: Faults
    short: int  # documents left out because they are short
    digests: list[bytes]  # of each document, if duplicates are dropped
    texts: int  # non-empty ones
    comparisons: list[TextComparison]  # parts to compare with the reference tokenizer


class _PreparedChunk(NamedTuple):
    documents: list[list[str]]  # sentences of each document
    texts: list[str]  # all sentences
    parts: list[Part]  # of `texts`, for the comparison with the reference
    faults: Faults
    short: int  # documents left out because they are short


def _encode_chunk(tokenizer: Tokenizer, chunk: Chunk, encoding: Encoding) -> EncodedChunk:
    """Return the tokens of a chunk. Sentences without a token are left out; documents without one are kept."""
    prepared = _prepare(tokenizer, chunk, encoding)
    return _assemble(tokenizer, prepared, _ids_of(tokenizer, prepared, chunk), encoding)


def _prepare(tokenizer: Tokenizer, chunk: Chunk, encoding: Encoding) -> _PreparedChunk:
    found, faults = read_documents(chunk, encoding.json_key, skip=encoding.skip_faults)
    documents = clean(found, encoding.cleaning)
    texts = list(chain.from_iterable(documents))
    parts = parts_of(tokenizer.added_tokens, texts)
    return _PreparedChunk(documents, texts, parts, faults, len(found) - len(documents))


def _ids_of(tokenizer: Tokenizer, prepared: _PreparedChunk, chunk: Chunk) -> Sequence[Any]:
    try:
        return tokenizer.encode_batch([*prepared.texts, *(part.text for part in prepared.parts)])
    except DataError as exc:
        msg = f"{where(chunk)} or a later line: {exc}"
        raise DataError(msg) from exc
    except BaseException as exc:
        if not is_panic(exc):
            raise
        msg = f"{where(chunk)} or a later line: the tokenizer's library failed: {exc}.\n"
        msg += "Pass --encoder tokenizers, or remove the document on which it fails."
        raise DataError(msg) from exc


def _assemble(tokenizer: Tokenizer, prepared: _PreparedChunk, ids: Sequence[Any], encoding: Encoding) -> EncodedChunk:
    """Return the tokens of a chunk, given the `ids` of its texts and parts."""
    documents, texts, compared, faults, short = prepared
    dtype = token_dtype(tokenizer.vocab_size)  # holds every id
    end = [np.array([end_token(tokenizer, "--append-eod")], dtype)] if encoding.append_eod else []
    remaining = iter(ids)
    parts: list[Any] = []
    lengths: list[int] = []
    sequences = np.zeros(len(documents), np.int64)
    for number, document in enumerate(documents):
        kept = [sentence for sentence in (next(remaining) for _ in document) if len(sentence)]
        if kept:
            parts += kept + end
            lengths += map(len, kept)
            lengths[-1] += len(end)
            sequences[number] = len(kept)
    tokens = np.concatenate(parts, dtype=dtype, casting="unsafe") if parts else np.zeros(0, dtype)
    return EncodedChunk(
        Encoded(tokens, np.array(lengths, "<i4"), sequences),
        faults,
        short,
        digests_of(documents) if encoding.cleaning.drop_duplicates else [],
        sum(map(bool, texts)),
        comparisons_of(compared, ids[: len(texts)], ids[len(texts) :]),
    )


_MOST_THREADS = 4  # they copy nothing, but only one at a time reads JSON; more would wait for it
_MOST_WAITING = 3  # chunks in work or waiting, per worker; enough that a slow chunk does not stop the others
# most bytes of all chunks in work or waiting; a chunk has 2 MiB, or one document up to `LONGEST_DOCUMENT`
_WAITING_BYTES = 1 << 27
_Result = Callable[[], "EncodedChunk"]


def encoded_chunks(
    chunks: Iterable[Chunk], section: NamesTokenizer, encoder: Encoder, encoding: Encoding, workers: int
) -> Generator[tuple[Chunk, EncodedChunk]]:
    """Yield every chunk with its result, in the order of `chunks`. One worker is this thread."""
    if workers == 1:
        yield from ((chunk, _encode_chunk(encoder.tokenizer, chunk, encoding)) for chunk in chunks)
    elif encoder.reference and workers <= _MOST_THREADS and not encoding.cleaning.fix_text:  # it releases the GIL
        yield from _by_threads(chunks, encoder.tokenizer, encoding, workers)
    else:
        yield from _by_processes(chunks, section, encoding, workers, reference_only=not encoder.reference)


def _by_threads(
    chunks: Iterable[Chunk], tokenizer: Tokenizer, encoding: Encoding, workers: int
) -> Generator[tuple[Chunk, EncodedChunk]]:
    """Run the Python code in this thread and the encoding, which releases the GIL, in the others."""
    with ThreadPoolExecutor(workers - 1) as pool:

        def begin(chunk: Chunk) -> _Result:
            prepared = _prepare(tokenizer, chunk, encoding)
            ids = pool.submit(_ids_of, tokenizer, prepared, chunk)
            return lambda: _assemble(tokenizer, prepared, ids.result(), encoding)

        try:
            yield from _in_order(begin, chunks, workers * _MOST_WAITING)
        finally:
            pool.shutdown(cancel_futures=True)


def _by_processes(
    chunks: Iterable[Chunk], section: NamesTokenizer, encoding: Encoding, workers: int, *, reference_only: bool
) -> Generator[tuple[Chunk, EncodedChunk]]:
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415  half of this module's time to import

    # spawn: this process may hold threads (torch, BLAS), and a fork would copy their locks in any state.
    context = multiprocessing.get_context("spawn")
    start = partial(_start_worker, section, encoding, reference_only)
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=start)
    try:
        yield from _in_order(
            lambda chunk: pool.submit(_encode_in_worker, chunk).result, chunks, workers * _MOST_WAITING
        )
    except BrokenExecutor as exc:
        msg = "a worker process died, perhaps because memory ran out.\nTry fewer --workers."
        raise DataError(msg) from exc
    finally:
        pool.shutdown(cancel_futures=True)


def _in_order(
    begin: Callable[[Chunk], _Result], chunks: Iterable[Chunk], ahead: int
) -> Generator[tuple[Chunk, EncodedChunk]]:
    waiting: deque[tuple[Chunk, _Result]] = deque()
    size = 0
    for chunk in chunks:
        waiting.append((chunk, begin(chunk)))
        size += chunk.size
        while len(waiting) >= ahead or (size > _WAITING_BYTES and waiting):
            first, result = waiting.popleft()
            size -= first.size
            yield first, result()
    while waiting:
        first, result = waiting.popleft()
        yield first, result()


class _Worker:
    """State of a worker process between two chunks."""

    tokenizer: ClassVar[Tokenizer]
    encoding: ClassVar[Encoding]


def _start_worker(section: NamesTokenizer, encoding: Encoding, reference_only: bool) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends the pool
    exit_with_parent()
    _Worker.tokenizer = load_encoder(section, reference_only=reference_only).tokenizer
    _Worker.encoding = encoding


def _encode_in_worker(chunk: Chunk) -> EncodedChunk:
    return _encode_chunk(_Worker.tokenizer, chunk, _Worker.encoding)
