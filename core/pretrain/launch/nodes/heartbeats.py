"""Heartbeats of launchers, and their silence."""

from __future__ import annotations

import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from torch.distributed import DistError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.launch.nodes.store_client import StoreClient

_BEAT = 1.0  # seconds between two heartbeats of a launcher


class Heartbeat(threading.Thread):
    """Heartbeats of this launcher, one a second, whatever it is doing, until `stop` or the end of the store."""

    def __init__(self, store: StoreClient, launcher: str) -> None:
        super().__init__(daemon=True, name="heartbeat")
        self._store = weakref.ref(store)
        self._key = _beats(launcher)
        self._end = threading.Event()
        store.add(self._key, 1)  # those who watch it find it there
        self.start()

    def run(self) -> None:
        """Beat each second."""
        while not self._end.wait(_BEAT) and (store := self._store()) is not None:
            with suppress(DistError):
                store.add(self._key, 1)
            del store

    def stop(self) -> None:
        """Give no more heartbeats."""
        self._end.set()


class HeartbeatWatch:
    """Silence of launchers, as seen here."""

    def __init__(self, store: StoreClient) -> None:
        self._store = store
        self._seen: dict[str, tuple[int, float]] = {}

    def silence(self, launcher: str) -> float:
        """Return the seconds since a new heartbeat was seen; 0 at first."""
        return self.silences([launcher])[0]

    def silences(self, launchers: Sequence[str]) -> list[float]:
        """Return that of each, by one question to the store."""
        beats, now = self.beats(launchers), time.monotonic()
        for launcher, latest in zip(launchers, beats, strict=True):
            if launcher not in self._seen or self._seen[launcher][0] != latest:
                self._seen[launcher] = latest, now
        return [now - self._seen[launcher][1] for launcher in launchers]

    def beats(self, launchers: Sequence[str]) -> list[int]:
        """Return how many heartbeats each has given."""
        return [int(count) for count in self._store.multi_get([_beats(launcher) for launcher in launchers])]


def _beats(launcher: str) -> str:
    return f"heartbeats/{launcher}"
