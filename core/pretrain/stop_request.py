"""Signals that ask a run to save and end, and which of them ask for the end at once."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_REPEATED_WITHIN = {signal.SIGINT: 0.2, signal.SIGTERM: 2.0, signal.SIGHUP: 2.0}
"""Seconds after the first stop signal within which another one is the same request. Slurm sends SIGTERM twice at a time
limit, and `timeout` any signal to the process and to its group; a person takes longer for a second Ctrl-C."""


@dataclass(slots=True)
class StopRequest:
    """The stop signals of a process.

    Attributes:
        number: the first one; 0 so far.
        at_once: another one came that is no repetition of it: the process is to end without saving.
    """

    number: int = 0
    at_once: bool = False
    _first: float = field(default=0.0, repr=False)

    def take(self, number: int) -> None:
        """Take a signal, of this number, that comes now."""
        now = time.monotonic()
        if not self.number:
            self.number, self._first = number, now
        elif now - self._first > _REPEATED_WITHIN[signal.Signals(number)]:
            self.at_once = True
