"""Signs of life of launchers: each gives one a second, and node 0 sees how long one has been silent."""

from __future__ import annotations

import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from torch.distributed import DistError

if TYPE_CHECKING:
    from pretrain.launch.nodes.bounded_store import BoundedStore

_PERIOD = 1.0


class Signs(threading.Thread):
    """Thread that gives signs, whatever the launcher is doing: ending ranks or waiting for a file system takes long."""

    def __init__(self, store: BoundedStore, launcher: str) -> None:
        """Begin at once; it ends with `stop`, with the store, or with the connection."""
        super().__init__(daemon=True, name="signs-of-life")
        self._store = weakref.ref(store)
        self._key = _key(launcher)
        self._end = threading.Event()
        self.start()

    def run(self) -> None:
        """Give a sign each second."""
        while (store := self._store()) is not None:
            with suppress(DistError):
                store.add(self._key, 1)
            del store
            if self._end.wait(_PERIOD):
                return

    def stop(self) -> None:
        """Give no more signs."""
        self._end.set()


class Watch:
    """Silence of launchers, as seen here."""

    def __init__(self, store: BoundedStore) -> None:
        """Begin; no launcher has been seen."""
        self._store = store
        self._seen: dict[str, tuple[int, float]] = {}

    def silence(self, launcher: str) -> float:
        """Return the seconds since a new sign was seen; 0 at first.

        Raises:
            DistError: the store is lost or silent.
        """
        now, latest = time.monotonic(), self._store.add(_key(launcher), 0)
        if launcher not in self._seen or self._seen[launcher][0] != latest:
            self._seen[launcher] = latest, now
        return now - self._seen[launcher][1]


def _key(launcher: str) -> str:
    return f"signs/{launcher}"
