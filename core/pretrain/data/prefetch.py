"""Prefetch the items of an iterator in a thread; end worker processes with the process that started them."""

from __future__ import annotations

import multiprocessing
import os
import threading
import weakref
from queue import SimpleQueue
from threading import Event, Thread, current_thread
from typing import TYPE_CHECKING, Generic, NamedTuple, Self, TypeVar

from pretrain.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

T = TypeVar("T")

_MOST_WAITING = 2  # largest number of prefetched items


class Prefetcher(Generic[T]):
    """An iterator that makes `items` in its own thread before they are requested; their exception keeps its place."""

    def __init__(self, items: Iterator[T]) -> None:
        self._made: SimpleQueue[T | _Raised] = SimpleQueue()
        self._places: SimpleQueue[None] = SimpleQueue()  # not a semaphore: a finalizer may interrupt one in release
        for _ in range(_MOST_WAITING):
            self._places.put(None)
        stopped = Event()
        # The thread has no reference to this object, so it ends, and releases the items, together with it. It is a
        # daemon, because a thread that still reads must not delay the exit of Python.
        self._thread = Thread(target=_make, args=(items, self._made, self._places, stopped), daemon=True)
        self._stop = weakref.finalize(self, _stop, self._places, stopped)
        self._thread.start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        made = self._made.get()
        if isinstance(made, _Raised):
            self._made.put(_Raised(StopIteration()))
            try:
                raise made.exception
            finally:
                del made  # otherwise the exception would refer to itself through this frame
        self._places.put(None)
        return made

    def close(self, timeout: float | None = None) -> None:
        """Make no more items, and wait at most `timeout` seconds for the one that is being made."""
        self._stop()
        if self._thread is not current_thread():  # the garbage collector may call this there
            self._thread.join(timeout)


def prefetched(items: Generator[T]) -> Generator[T]:
    """Yield `items`, prefetched; the generator is closed at the end."""
    reader = Prefetcher(items)
    try:
        yield from reader
    finally:
        reader.close()
        items.close()


class _Raised(NamedTuple):
    exception: BaseException


def _make(items: Iterator[T], made: SimpleQueue[T | _Raised], places: SimpleQueue[None], stopped: Event) -> None:
    while True:
        places.get()
        if stopped.is_set():
            break
        try:
            made.put(next(items))
        except BaseException as exc:  # noqa: BLE001  raised again where the item is requested
            # Without this frame, which refers to the exception's queue and to the items.
            made.put(_Raised(exc.with_traceback(exc.__traceback__.tb_next if exc.__traceback__ else None)))
            del items  # from Python 3.13 on the frame of a generator that raised still refers to this one
            return
    made.put(_Raised(StopIteration()))


def _stop(places: SimpleQueue[None], stopped: Event) -> None:
    stopped.set()
    places.put(None)


def exit_with_parent() -> None:
    """Exit this worker when its parent ends, even if that was killed: else it would wait for its queue forever."""
    threading.Thread(target=_wait, daemon=True).start()


def _wait() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(ExitCode.FAILURE)
