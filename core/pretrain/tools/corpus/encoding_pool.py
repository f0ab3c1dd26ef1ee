"""Encode chunks on several cores, in order and in bounded memory."""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from pretrain.data.orphans import exit_with_parent
from pretrain.data.tokenizers import load_encoder
from pretrain.errors import DataError
from pretrain.tools.corpus.encoding import assemble, encode_chunk, ids_of, prepare

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from pretrain.data.tokenizers import Tokenizer
    from pretrain.data.tokenizers.files import NamesTokenizer
    from pretrain.data.tokenizers.load import Encoder
    from pretrain.tools.corpus.chunks import Chunk
    from pretrain.tools.corpus.encoding import EncodedChunk, Encoding

_MOST_THREADS = 4
"""Threads start at once and copy nothing, but only one at a time reads JSON; more threads would wait for it."""
_MOST_WAITING = 3
"""Chunks in work or waiting, per worker; enough that a slow chunk does not stop the others."""
_WAITING_BYTES = 1 << 27
"""Bytes of all chunks in work or waiting. A chunk has about 2 MiB; a document may have `LONGEST_DOCUMENT` bytes."""

Result = Callable[[], "EncodedChunk"]


def encoded_chunks(
    chunks: Iterable[Chunk], section: NamesTokenizer, encoder: Encoder, encoding: Encoding, workers: int
) -> Generator[tuple[Chunk, EncodedChunk]]:
    """Yield every chunk with its result, in the order of `chunks`, for any number of workers.

    One worker is this thread. Several workers are threads, if the tokenizer releases the GIL and Python does not clean
    the texts; otherwise processes, each of which loads the tokenizer of `section`.

    Raises:
        DataError: raised by `encode_chunk`, or a worker process died.
    """
    if workers == 1:
        yield from ((chunk, encode_chunk(encoder.tokenizer, chunk, encoding)) for chunk in chunks)
    elif encoder.reference and workers <= _MOST_THREADS and not encoding.cleaning.fix_text:
        yield from _by_threads(chunks, encoder.tokenizer, encoding, workers)
    else:
        yield from _by_processes(chunks, section, encoding, workers, reference_only=not encoder.reference)


def _by_threads(
    chunks: Iterable[Chunk], tokenizer: Tokenizer, encoding: Encoding, workers: int
) -> Generator[tuple[Chunk, EncodedChunk]]:
    """Run the Python code in this thread and the encoding, which releases the GIL, in the others."""
    with ThreadPoolExecutor(workers - 1) as pool:

        def begin(chunk: Chunk) -> Result:
            prepared = prepare(tokenizer, chunk, encoding)
            ids = pool.submit(ids_of, tokenizer, prepared, chunk)
            return lambda: assemble(tokenizer, prepared, ids.result(), encoding)

        try:
            yield from _in_order(begin, chunks, workers * _MOST_WAITING)
        finally:
            pool.shutdown(cancel_futures=True)


def _by_processes(
    chunks: Iterable[Chunk], section: NamesTokenizer, encoding: Encoding, workers: int, *, reference_only: bool
) -> Generator[tuple[Chunk, EncodedChunk]]:
    # Half of this module's time to import, and seldom needed.
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415

    # spawn: this process may hold threads (torch, BLAS), and a fork would copy their locks in any state.
    context = multiprocessing.get_context("spawn")
    start = partial(_start_worker, section, encoding, reference_only)
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=start)
    try:
        yield from _in_order(
            lambda chunk: pool.submit(_encode_in_worker, chunk).result, chunks, workers * _MOST_WAITING
        )
    except BrokenExecutor as exc:
        msg = "a worker process died, perhaps for lack of memory.\nTry fewer --workers."
        raise DataError(msg) from exc
    finally:
        pool.shutdown(cancel_futures=True)


def _in_order(
    begin: Callable[[Chunk], Result], chunks: Iterable[Chunk], ahead: int
) -> Generator[tuple[Chunk, EncodedChunk]]:
    waiting: deque[tuple[Chunk, Result]] = deque()
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
    return encode_chunk(_Worker.tokenizer, chunk, _Worker.encoding)
