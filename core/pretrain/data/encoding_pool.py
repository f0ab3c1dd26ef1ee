"""Encoding on several cores, in order and in bounded memory."""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from pretrain.data.encoding import encode_chunk
from pretrain.data.orphans import leave_with_parent
from pretrain.data.tokenizers import load_encoder
from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from concurrent.futures import Executor, Future

    from pretrain.data.chunks import Chunk
    from pretrain.data.encoding import EncodedChunk, Encoding
    from pretrain.data.tokenizers import Tokenizer
    from pretrain.data.tokenizers.files import NamesTokenizer
    from pretrain.data.tokenizers.load import Encoder

_MOST_THREADS = 4
"""Threads start at once and copy nothing, but only one at a time reads JSON: more of them would wait for that one."""
_AHEAD = 3
"""Chunks in work or waiting, per worker: enough that a slow one does not stop the others."""
_WAITING_BYTES = 1 << 27
"""Of all chunks in work or waiting. A mebibyte each is usual; a document can be as long as `LONGEST_DOCUMENT`."""


def encoded_chunks(
    chunks: Iterable[Chunk], section: NamesTokenizer, encoder: Encoder, encoding: Encoding, workers: int
) -> Generator[tuple[Chunk, EncodedChunk], None, None]:
    """Yield every chunk with what it became, in the order of `chunks`, whatever the number of workers.

    One worker is this thread. Several are threads, if the tokenizer lets them run, or processes, each of which loads
    the tokenizer of `section`.

    Raises:
        DataError: what `encode_chunk` raised, or a worker process died.
    """
    if workers == 1:
        yield from ((chunk, encode_chunk(encoder.tokenizer, chunk, encoding)) for chunk in chunks)
        return
    pool: Executor
    encode: Callable[[Chunk], EncodedChunk]
    if encoder.reference and workers <= _MOST_THREADS:
        pool, encode = ThreadPoolExecutor(workers), partial(encode_chunk, encoder.tokenizer, encoding=encoding)
    else:
        pool, encode = _processes(section, encoding, workers, reference_only=not encoder.reference), _encode_in_worker
    try:
        yield from _in_order(pool, encode, chunks, workers * _AHEAD)
    except BrokenExecutor as exc:
        msg = "a worker process died, perhaps for lack of memory.\nTry fewer --workers."
        raise DataError(msg) from exc
    finally:
        pool.shutdown(cancel_futures=True)


def _processes(section: NamesTokenizer, encoding: Encoding, workers: int, *, reference_only: bool) -> Executor:
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415  half of this module's time to import, and seldom needed

    # spawn: this process may hold threads (torch, BLAS), and a fork would copy their locks in any state.
    context = multiprocessing.get_context("spawn")
    start = partial(_start_worker, section, encoding, reference_only)
    return ProcessPoolExecutor(workers, mp_context=context, initializer=start)


def _in_order(
    pool: Executor, encode: Callable[[Chunk], EncodedChunk], chunks: Iterable[Chunk], ahead: int
) -> Generator[tuple[Chunk, EncodedChunk], None, None]:
    waiting: deque[tuple[Chunk, Future[EncodedChunk]]] = deque()
    size = 0
    for chunk in chunks:
        waiting.append((chunk, pool.submit(encode, chunk)))
        size += chunk.size
        while len(waiting) >= ahead or (size > _WAITING_BYTES and waiting):
            first, future = waiting.popleft()
            size -= first.size
            yield first, future.result()
    while waiting:
        first, future = waiting.popleft()
        yield first, future.result()


class _Worker:
    """What a worker process keeps between two chunks."""

    tokenizer: ClassVar[Tokenizer]
    encoding: ClassVar[Encoding]


def _start_worker(section: NamesTokenizer, encoding: Encoding, reference_only: bool) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends the pool
    leave_with_parent()
    _Worker.tokenizer = load_encoder(section, reference_only=reference_only).tokenizer
    _Worker.encoding = encoding


def _encode_in_worker(chunk: Chunk) -> EncodedChunk:
    return encode_chunk(_Worker.tokenizer, chunk, _Worker.encoding)
