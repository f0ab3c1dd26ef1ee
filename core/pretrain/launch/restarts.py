"""Restarts of a run: their limits, and the decision after each failure between a restart and the end."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from pretrain.errors import LaunchError, PretrainError
from pretrain.launch.processes.failure import CRASH, Failure
from pretrain.launch.processes.supervision import stop_signals_exit
from pretrain.report.metrics import FILE as METRICS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pretrain.checkpoint.folder import CheckpointFolder
    from pretrain.recipe import Recipe


_TAIL = 64 * 1024  # bytes at the end of metrics.jsonl that are read
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0
_DOUBLINGS = 6
_VARYING = re.compile(r"0x[0-9a-fA-F]+|\d+")
"""Addresses, ports, process ids, times: they differ between two failures that have one cause."""
_LINE = 160


@dataclass(frozen=True, kw_only=True, slots=True)
class RestartPolicy:
    """Limits of restarts after a failure: their number, and that of the nodes."""

    limit: int = 0  # restarts in all, `--max-restarts`
    fewest_nodes: int | None = None  # with which it continues without others, `--allow-fewer-nodes`; None: all

    def __post_init__(self) -> None:
        if self.fewest_nodes is not None and not self.limit:
            msg = (
                f"--allow-fewer-nodes {self.fewest_nodes} has no effect without restarts.\n"
                "Pass --max-restarts N as well, or leave it out."
            )
            raise LaunchError(msg)

    def require_nodes(self, count: int, *, spares: int = 0, external: bool = False) -> None:
        """Check that fewer nodes are fewer than those of the run, and that what only a restart uses has one."""
        if not self.limit and (spares or external):
            option = f"--spares {spares}" if spares else "--external-rdzv"
            msg = f"{option} has no effect without restarts.\nPass --max-restarts N as well, or leave it out."
            raise LaunchError(msg)
        if self.fewest_nodes is not None and self.fewest_nodes >= count:
            msg = (
                f"--allow-fewer-nodes {self.fewest_nodes} is not below the number of nodes, {count}.\n"
                "Pass a smaller number, or leave it out."
            )
            raise LaunchError(msg)


NO_RESTARTS = RestartPolicy()


@dataclass(frozen=True, kw_only=True, slots=True)
class RunProgress:
    """How far a run has come, by its files; None for one that is missing or damaged."""

    saved: int | None  # iteration of the latest checkpoint
    logged: int | None  # last iteration in metrics.jsonl
    is_copied: bool = False  # to the nodes' own disks, between checkpoints

    @classmethod
    def of_run(cls, recipe: Recipe, run_dir: Path) -> RunProgress:
        """Return how far the run of a directory has come."""
        from pretrain.checkpoint.stored_folder import folder_of_run  # noqa: PLC0415  only after a failure

        return cls(
            saved=_saved(folder_of_run(recipe, run_dir)),
            logged=_logged(run_dir / METRICS),
            is_copied=recipe.checkpoint.local_interval > 0,
        )

    def has_kept(self, before: RunProgress) -> bool:
        """Say whether a restart goes on from later than it did before."""
        return self.saved != before.saved or (self.is_copied and self.logged != before.logged)


def _saved(folder: CheckpointFolder) -> int | None:
    with suppress(PretrainError, OSError, ValueError):
        latest, there = folder.latest(), folder.iterations()
        # A single one need not be named: the run was killed just before that.
        return there[0] if latest is None and len(there) == 1 else latest
    return None


def _logged(path: Path) -> int | None:
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
        for line in reversed(file.read().splitlines()):
            with suppress(ValueError):
                record = json.loads(line)
                if isinstance(record, dict) and isinstance(record.get("iteration"), int):
                    return int(record["iteration"])
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """Decision after a failure; plain values, sent to other nodes."""

    wait: float | None = None  # seconds before the restart; None: the run ends
    text: str = ""  # about the restart, or why there is none; may be empty


@dataclass(frozen=True, slots=True)
class _JudgedFailure:
    failure: Failure
    progress: RunProgress

    def repeats(self, before: _JudgedFailure) -> bool:
        """Say whether the same rank or node failed with the same words, without progress in between."""
        now, then = self.failure, before.failure
        # A report of all ranks comes from any of them.
        of_one = now.of_launcher or now.rank == then.rank
        same = of_one and (now.place, now.host, _words(now)) == (then.place, then.host, _words(then))
        return same and self.progress == before.progress


class Restarts:
    """Counts the restarts of a run, and judges its failures; `look` returns how far it has come."""

    def __init__(self, policy: RestartPolicy, look: Callable[[], RunProgress]) -> None:
        self.count = 0
        self._limit = policy.limit
        self._look = look
        self._last: _JudgedFailure | None = None
        self._in_a_row = 0

    @classmethod
    def of_run(cls, policy: RestartPolicy, recipe: Recipe, run_dir: Path) -> Restarts:
        """Begin a run whose directory is known."""
        return cls(policy, partial(RunProgress.of_run, recipe, run_dir))

    def state(self) -> dict[str, Any]:
        """Return what a launcher has to know that judges the next failure; plain values."""
        last = self._last and [dataclasses.asdict(self._last.failure), dataclasses.asdict(self._last.progress)]
        return {"count": self.count, "in_a_row": self._in_a_row, "last": last}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` has returned on another node."""
        self.count, self._in_a_row, last = state["count"], state["in_a_row"], state["last"]
        self._last = _JudgedFailure(Failure(**last[0]), RunProgress(**last[1])) if last else None

    def judge(self, failure: Failure, *, is_replaced: bool = False) -> Decision:
        """Decide what follows from a failure; the same one counts anew where its node `is_replaced`."""
        # A user error, and a signal or a time limit that asked the run to end, are no reason for a restart; a signal
        # that a rank got alone is one, also if all have saved. The failure of before at the same iteration, with no
        # checkpoint or logged iteration between, is none. A restart that could not begin is tried again: the run had
        # begun, so the cause may pass.
        passing = failure.passing and self.count > 0
        if failure.asked or (failure.expected and not passing):
            return Decision()
        seen, before = _JudgedFailure(failure, self._look()), self._last
        if not passing:
            self._last = seen
        if before is not None and not passing and not is_replaced and seen.repeats(before):
            return Decision(text=_repeated(before, seen))
        if self.count >= self._limit:
            left = f"All restarts are used up (--max-restarts {self._limit}). {_remedy(seen.progress)}"
            return Decision(text=left if self._limit else "")
        gained = before is None or seen.progress.has_kept(before.progress)
        self._in_a_row = 0 if gained else self._in_a_row + 1
        self.count += 1
        wait = min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** min(self._in_a_row, _DOUBLINGS))
        return Decision(
            wait=wait, text=f"restart {self.count} of {self._limit} in {wait:g} s, from {_start(seen.progress)}"
        )

    def show_end(self) -> None:
        """Show how many restarts a run has had, if any."""
        if self.count:
            click.echo(f"ended after {self.count} restart{'s' if self.count > 1 else ''}", err=True)


def with_remark(failure: Failure, verdict: Decision) -> Failure:
    """Return the failure as it is shown at the end, with the reason that there is no restart."""
    if not verdict.text:
        return failure
    exit_code = CRASH if failure.passing else failure.exit_code  # one that may pass is no user error: the run had begun
    return dataclasses.replace(failure, text=f"{failure.text}\n{verdict.text}", exit_code=exit_code)


def _start(progress: RunProgress) -> str:
    start = "the beginning" if progress.saved is None else f"the checkpoint of iteration {progress.saved}"
    return f"{start} or later copies on the nodes" if progress.is_copied else start


def _remedy(progress: RunProgress) -> str:
    if progress.saved is None:
        return "There is no checkpoint yet."
    return f"--resume continues from {_start(progress)}."


def _repeated(before: _JudgedFailure, seen: _JudgedFailure) -> str:
    logged = seen.progress.logged
    where = "before the first iteration" if logged is None else f"after iteration {logged}"
    return (
        f"No restart: the run failed twice in the same way {where}, without progress in between.\n"
        f"first: {_shortest(before.failure)}\n"
        f"then:  {_shortest(seen.failure)}\n"
        f"Remove the cause. {_remedy(seen.progress)}"
    )


def _words(failure: Failure) -> str:
    return _VARYING.sub("#", failure.text)


def _shortest(failure: Failure) -> str:
    """Return rank and essence of a failure in one line: the last line of a traceback, the first one of a message."""
    lines = failure.text.splitlines() or [""]
    line = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    return line[:_LINE] if failure.of_launcher else f"rank {failure.rank}: {line[:_LINE]}"


def run_attempts(attempt: Callable[[], Failure | None], restarts: Restarts) -> Failure | None:
    """Call `attempt` until it does not fail, or no restart follows; return the last failure, None if it is complete."""
    with stop_signals_exit():
        while (failure := attempt()) is not None:
            verdict = restarts.judge(failure)
            if verdict.wait is None:
                break
            announce(failure, verdict)
            time.sleep(verdict.wait)
        if failure is None or failure.stopped:
            restarts.show_end()
    return failure and with_remark(failure, verdict)


def announce(failure: Failure | None, verdict: Decision) -> None:
    """Show a failure, which may be known to another node alone, and the restart that follows it."""
    click.echo(f"{failure}\n{verdict.text}" if failure else verdict.text, err=True)
