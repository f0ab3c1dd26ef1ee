"""Ends of a process: exit codes (docs/reliability.md has the table), and the signals that ask it to save and end."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of all commands, and of each rank; a signal that saved nothing has `of_signal`."""

    COMPLETE = 0  # all is done, or the training has ended where its own recipe says
    FAILURE = 1  # something failed; a check of doctor, verify or align has found something
    USER_ERROR = 2
    PARTIAL = 3  # migrate: not everything is supported; align: nothing was compared, as a side has crashed
    SAVED = 75
    """Something else than the recipe has ended the training, and it has saved: there is more to do. EX_TEMPFAIL of
    sysexits.h."""


WELL = frozenset({ExitCode.COMPLETE, ExitCode.SAVED})  # codes that say that ranks have done, or saved, their work


def of_signal(number: int) -> int:
    """Return the exit code of an end by a signal, as shells have it."""
    return 128 + number


@dataclass(frozen=True, slots=True)
class End:
    """End of a rank that did not fail; the reason is why before the last iteration, "" at the end."""

    code: int = ExitCode.COMPLETE  # `COMPLETE`, `SAVED`, or `of_signal` where nothing could be saved
    reason: str = ""  # a signal's name, or words
    by_signal: bool = False


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ENDED_AT_ONCE = "{}: ended at once, without saving\n"
"""What a second stop signal, by its name, is answered with."""
_REPEATED_WITHIN = {signal.SIGINT: 0.2, signal.SIGTERM: 2.0, signal.SIGHUP: 2.0}
"""Seconds after the first stop signal within which another one is the same request. Slurm sends SIGTERM twice at a time
limit, and `timeout` any signal to the process and to its group; a person takes longer for a second Ctrl-C."""


@dataclass(slots=True)
class StopRequest:
    """The stop signals of a process."""

    number: int = 0  # the first one; 0 so far
    at_once: bool = False  # another one that repeats nothing: the process is to end without saving
    _first: float = field(default=0.0, repr=False)

    def take(self, number: int) -> bool:
        """Take a signal, of this number, that comes now; return whether it is the first."""
        now, is_first = time.monotonic(), not self.number
        if is_first:
            self.number, self._first = number, now
        elif now - self._first > _REPEATED_WITHIN[signal.Signals(number)]:
            self.at_once = True
        return is_first
