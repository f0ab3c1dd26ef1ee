"""Encoding on several cores, in order and in bounded memory."""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from pretrain.data.orphans import leave_with_parent
from pretrain.data.tokenizers import load_tokenizer
from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from concurrent.futures import Future

    from pretrain.data.documents import Chunk
    from pretrain.data.token_writer import Encoded
    from pretrain.data.tokenizers import Tokenizer
    from pretrain.recipe.sections.tokenizer import TokenizerSection

    Encode = Callable[[Tokenizer, Chunk], Encoded]

_AHEAD = 3
"""Chunks in work or waiting, per worker: enough that a slow one does not stop the others."""


def encode_in_order(
    encode: Encode, chunks: Iterable[Chunk], section: TokenizerSection, tokenizer: Tokenizer, workers: int
) -> Generator[tuple[Chunk, Encoded], None, None]:
    """Yield every chunk with its tokens, in the order of `chunks`, whatever the number of workers.

    Raises:
        DataError: what `encode` raised, or a worker process died.
    """
    if workers == 1:
        yield from ((chunk, encode(tokenizer, chunk)) for chunk in chunks)
        return
    # spawn: this process may hold threads (torch, BLAS), and a fork would copy their locks in any state.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(encode, section))
    try:
        yield from _in_order(pool, chunks, workers * _AHEAD)
    except BrokenProcessPool as exc:
        msg = "a worker process died, perhaps for lack of memory.\nTry fewer --workers."
        raise DataError(msg) from exc
    finally:
        pool.shutdown(cancel_futures=True)


def _in_order(pool: ProcessPoolExecutor, chunks: Iterable[Chunk], ahead: int) -> Iterator[tuple[Chunk, Encoded]]:
    waiting: deque[tuple[Chunk, Future[Encoded]]] = deque()
    for chunk in chunks:
        waiting.append((chunk, pool.submit(_encode, chunk)))
        if len(waiting) >= ahead:
            yield _first(waiting)
    while waiting:
        yield _first(waiting)


def _first(waiting: deque[tuple[Chunk, Future[Encoded]]]) -> tuple[Chunk, Encoded]:
    chunk, future = waiting.popleft()
    return chunk, future.result()


class _Worker:
    """What a worker process keeps between two chunks."""

    encode: ClassVar[Callable[[Chunk], Encoded]]


def _start_worker(encode: Encode, section: TokenizerSection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends the pool
    leave_with_parent()
    _Worker.encode = partial(encode, load_tokenizer(section))


def _encode(chunk: Chunk) -> Encoded:
    return _Worker.encode(chunk)
