"""Reading while something else is done with what was read before: unpacking lets other threads run."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator

T = TypeVar("T")

_AHEAD = 2
"""Items that wait at the most."""


def ahead(items: Generator[T]) -> Generator[T]:
    """Yield `items`, made in a thread of its own before they are asked for; it is closed at the end.

    Raises:
        Exception: what `items` raised, in its place.
    """
    with ThreadPoolExecutor(1) as pool:
        waiting = deque(pool.submit(next, items, None) for _ in range(_AHEAD))
        try:
            while (item := waiting.popleft().result()) is not None:
                waiting.append(pool.submit(next, items, None))
                yield item
        finally:
            pool.shutdown(cancel_futures=True)
            items.close()
