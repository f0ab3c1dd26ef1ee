"""Reading while something else is done with what was read before."""

from __future__ import annotations

import weakref
from queue import SimpleQueue
from threading import Event, Thread, current_thread
from typing import TYPE_CHECKING, Generic, NamedTuple, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

T = TypeVar("T")

_AHEAD = 2
"""Items that wait at the most."""


class Ahead(Generic[T]):
    """An iterator over `items`, which are made in a thread of its own before they are asked for.

    Raises:
        Exception: what `items` raised, in its place; nothing comes after it.
    """

    def __init__(self, items: Iterator[T]) -> None:
        self._made: SimpleQueue[T | _Raised] = SimpleQueue()
        self._places: SimpleQueue[None] = SimpleQueue()  # not a semaphore: a finalizer may interrupt one in release
        for _ in range(_AHEAD):
            self._places.put(None)
        stopped = Event()
        # Given no reference to this object, so that the thread ends, and lets go of the items, with it. A daemon: one
        # that reads when Python ends must not hold that up.
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
                del made  # or the exception would refer to itself, by this frame
        self._places.put(None)
        return made

    def close(self, timeout: float | None = None) -> None:
        """Make no more items, and wait for the one that is being made, at most so many seconds."""
        self._stop()
        if self._thread is not current_thread():  # where garbage may be collected, too
            self._thread.join(timeout)


def ahead(items: Generator[T]) -> Generator[T]:
    """Yield `items`, made ahead; the generator is closed at the end."""
    reader = Ahead(items)
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
        except BaseException as exc:  # noqa: BLE001  raised where the item is asked for
            # Without this frame, which refers to the exception's queue and to the items.
            made.put(_Raised(exc.with_traceback(exc.__traceback__.tb_next if exc.__traceback__ else None)))
            return
    made.put(_Raised(StopIteration()))


def _stop(places: SimpleQueue[None], stopped: Event) -> None:
    stopped.set()
    places.put(None)
