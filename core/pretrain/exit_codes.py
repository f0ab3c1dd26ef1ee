"""Exit codes, by which a scheduler or a script decides what follows; docs/reliability.md has the table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of all commands, and of each rank; a signal that saved nothing has `of_signal`."""

    COMPLETE = 0
    """All is done, or the training has ended where its own recipe says."""
    FAILURE = 1
    """Something failed; a check of doctor, verify or align has found something."""
    USER_ERROR = 2
    PARTIAL = 3
    """migrate: not everything is supported; align: nothing was compared, as a side has crashed."""
    SAVED = 75
    """Something else than the recipe has ended the training, and it has saved: there is more to do. EX_TEMPFAIL of
    sysexits.h."""


WELL = frozenset({ExitCode.COMPLETE, ExitCode.SAVED})
"""Codes that say that ranks have done, or saved, their work."""


def of_signal(number: int) -> int:
    """Return the exit code of an end by a signal, as shells have it."""
    return 128 + number


@dataclass(frozen=True, slots=True)
class End:
    """End of a rank that did not fail.

    Attributes:
        code: of the process; `COMPLETE`, `SAVED`, or `of_signal` where nothing could be saved.
        reason: why before the last iteration: a signal's name, or words; "" at the end.
        by_signal: whether the reason is a signal to a rank.
    """

    code: int = ExitCode.COMPLETE
    reason: str = ""
    by_signal: bool = False
