"""Seconds without movement after which a rank counts as hanging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.report.hang import position

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.report.hang.position import Position

LEAST, FACTOR = 60.0, 10.0
"""Seconds, and median steps: the larger of both is the automatic limit."""
EARLIER = 20.0
"""Seconds by which a report comes before the timeout of the collectives, which ends the processes without one."""

_STEP = {position.STEP, position.FORWARD_BACKWARD, position.BETWEEN, "data", "optimizer"}
"""Activities that a step's time says something about."""


@dataclass(frozen=True, slots=True)
class HangLimit:
    """The limit of one run.

    Attributes:
        given: `logging.hang_after_seconds`; None for the automatic one, 0 for none.
        timeout: of the collectives, seconds.
    """

    given: float | None
    timeout: float

    @property
    def is_off(self) -> bool:
        """True if nothing is a hang."""
        return self.given == 0

    @property
    def longest_wait(self) -> float:
        """Seconds in a collective after which a rank hangs in any case."""
        return max(1.0, self.timeout - EARLIER)

    def exceeded(self, place: Position, seconds: float, waited: Callable[[], float]) -> bool:
        """Say whether a rank hangs.

        A rank that works alone for long, as on a large checkpoint, does not hang by the automatic limit until another
        one waits for it.

        Args:
            place: of the rank.
            seconds: since it has last moved.
            waited: returns the seconds that it has been in a collective, 0 outside of one; asked before the timeout of
                the collectives alone. At its end a rank writes what is left to write, for as long as it takes: only
                this counts there.
        """
        if self.is_off:
            return False
        if self.given is not None and place.iteration and seconds > self.given and not _may_last(place):
            return True
        if seconds > self.longest_wait and waited() > self.longest_wait:
            return True
        median = place.median_step()
        if self.given is not None or median is None or place.activity not in _STEP:
            return False
        return seconds > max(LEAST, FACTOR * median)


def _may_last(place: Position) -> bool:
    """Say whether a rank is in what takes as long as it needs: its end, or the first batches, of workers that start."""
    return place.activity == position.END or (place.activity == "data" and place.median_step() is None)
