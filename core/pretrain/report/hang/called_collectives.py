"""The latest collectives, asked of a communication library that may hang itself."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pretrain.plugins.collective_record import CalledCollective

_PATIENCE = 3.0


class CalledCollectives:
    """A communication library's record, read in a thread of its own: one at a time, however often it is asked."""

    def __init__(self, recent: Callable[[], Sequence[CalledCollective]]) -> None:
        """Take the function that reads it."""
        self._recent = recent
        self._lock = threading.Lock()
        self._reading: _Reading | None = None

    def latest(self) -> list[CalledCollective]:
        """Return the latest collectives, oldest first; none if the library does not answer soon, or fails."""
        with self._lock:
            if self._reading is None or not self._reading.is_alive():
                self._reading = _Reading(self._recent)
                self._reading.start()
            reading = self._reading
        reading.join(_PATIENCE)
        return sorted(reading.found, key=lambda each: each.called)


class _Reading(threading.Thread):
    """One reading of the record."""

    def __init__(self, recent: Callable[[], Sequence[CalledCollective]]) -> None:
        super().__init__(name="flight recorder", daemon=True)
        self.found: Sequence[CalledCollective] = ()
        self._recent = recent

    def run(self) -> None:
        """Read; the stacks of a rank are worth a report without it."""
        with suppress(Exception):
            self.found = self._recent()
