"""Restarts of one run: after each failure, the decision between a restart and the end."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pretrain.launch.processes.failure import CRASH
from pretrain.launch.restarts.reached import reached_by

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pretrain.launch.processes.failure import Failure
    from pretrain.launch.restarts.reached import Reached
    from pretrain.launch.restarts.restart_policy import RestartPolicy
    from pretrain.recipe import Recipe

_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0
_DOUBLINGS = 6
_VARYING = re.compile(r"0x[0-9a-fA-F]+|\d+")
"""Addresses, ports, process ids, times: they differ between two failures that have one cause."""
_LINE = 160


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Decision after a failure; plain values, sent to other nodes.

    Attributes:
        wait: seconds before the restart; None: the run ends.
        text: line about the restart, or lines about why there is none; may be empty.
    """

    wait: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class _Seen:
    failure: Failure
    reached: Reached

    def repeats(self, before: _Seen) -> bool:
        """Say whether the same rank or node failed with the same words, and nothing was gained between."""
        now, then = self.failure, before.failure
        # A report of all ranks comes from any of them.
        of_one = now.of_launcher or now.rank == then.rank
        same = of_one and (now.place, now.host, _words(now)) == (then.place, then.host, _words(then))
        return same and self.reached == before.reached


class Restarts:
    """Counts the restarts of a run, and judges its failures.

    Attributes:
        count: restarts so far.
    """

    def __init__(self, policy: RestartPolicy, look: Callable[[], Reached]) -> None:
        """Begin a run; `look` returns how far it has come, and is called after each failure."""
        self.count = 0
        self._limit = policy.limit
        self._look = look
        self._last: _Seen | None = None
        self._in_a_row = 0

    @classmethod
    def of_run(cls, policy: RestartPolicy, recipe: Recipe, run_dir: Path) -> Restarts:
        """Begin a run whose directory is known."""
        return cls(policy, partial(reached_by, recipe, run_dir))

    def judge(self, failure: Failure) -> Verdict:
        """Decide what follows from a failure.

        A user error, and a signal or a time limit that asked the run to end, are no reason for a restart; a signal that
        a rank got alone is one, also if all have saved. The failure of before at the same iteration, with no checkpoint
        or logged iteration between, is none. A restart that could not begin is tried again: the run had begun, so the
        cause may pass.
        """
        passing = failure.passing and self.count > 0
        if failure.asked or (failure.expected and not passing):
            return Verdict()
        seen, before = _Seen(failure, self._look()), self._last
        if not passing:
            self._last = seen
        if before is not None and not passing and seen.repeats(before):
            return Verdict(text=_repeated(before, seen))
        if self.count >= self._limit:
            return Verdict(text=f"No restart is left of {self._limit}. {_remedy(seen.reached)}" if self._limit else "")
        gained = before is None or seen.reached.saved != before.reached.saved
        self._in_a_row = 0 if gained else self._in_a_row + 1
        self.count += 1
        wait = min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** min(self._in_a_row, _DOUBLINGS))
        return Verdict(wait=wait, text=f"restart {self.count} of {self._limit} in {wait:g} s, {_from(seen.reached)}")

    def summary(self) -> str:
        """Return the line at the end of a run; "" without a restart."""
        if not self.count:
            return ""
        return f"ended after {self.count} restart{'s' if self.count > 1 else ''}"


def with_remark(failure: Failure, verdict: Verdict) -> Failure:
    """Return the failure as it is shown at the end, with the reason that there is no restart.

    One that may pass is no user error then: the run had begun.
    """
    if not verdict.text:
        return failure
    exit_code = CRASH if failure.passing else failure.exit_code
    return dataclasses.replace(failure, text=f"{failure.text}\n{verdict.text}", exit_code=exit_code)


def _from(reached: Reached) -> str:
    return "from the beginning" if reached.saved is None else f"from the checkpoint of iteration {reached.saved}"


def _remedy(reached: Reached) -> str:
    if reached.saved is None:
        return "There is no checkpoint yet."
    return f"--resume continues from the checkpoint of iteration {reached.saved}."


def _repeated(before: _Seen, seen: _Seen) -> str:
    where = (
        f"after iteration {seen.reached.logged}" if seen.reached.logged is not None else "before the first iteration"
    )
    return (
        f"No restart: the same failure came twice {where}, and nothing was gained between.\n"
        f"first: {_shortest(before.failure)}\n"
        f"then:  {_shortest(seen.failure)}\n"
        f"Remove the cause. {_remedy(seen.reached)}"
    )


def _words(failure: Failure) -> str:
    return _VARYING.sub("#", failure.text)


def _shortest(failure: Failure) -> str:
    """Return rank and essence of a failure in one line: the last line of a traceback, the first one of a message."""
    lines = failure.text.splitlines() or [""]
    line = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    return line[:_LINE] if failure.of_launcher else f"rank {failure.rank}: {line[:_LINE]}"
