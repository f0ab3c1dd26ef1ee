"""Places at which the host waits for the device: each one keeps every rank of the job from running ahead of its GPU."""

from __future__ import annotations

import sys
from collections import Counter

OWN = ("fake_gpu", "torch", "contextlib", "functools")


class Waits:
    """Counts them by what was called and from where, while it is open."""

    def __init__(self):
        self.counts: Counter[str] = Counter()

    def note(self, what: str) -> None:
        """Count one."""
        self.counts[f"{what} in {caller()}"] += 1

    def take(self) -> dict[str, int]:
        """Return the counts since the last call."""
        counts, self.counts = dict(self.counts), Counter()
        return counts


def caller() -> str:
    """Return function and module of the innermost frame that is neither torch's nor this package's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in OWN:
        frame = frame.f_back
    return f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}"


waits = Waits()
