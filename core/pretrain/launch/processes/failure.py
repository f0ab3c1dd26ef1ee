"""Failures of ranks: description, file, and the root cause among several."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import time
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pretrain.atomic_files import replacing
from pretrain.errors import DeviceError, InUseError, LostRanksError, NotFiniteError, OtherRankError, PretrainError
from pretrain.exit_codes import STOP_SIGNALS, WELL, ExitCode, of_signal
from pretrain.launch.process_exit import exit_code_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pretrain.exit_codes import End


USER_ERROR, CRASH = ExitCode.USER_ERROR, ExitCode.FAILURE  # exit codes of failures: a user error; anything else
_INTERRUPTED = {sign for number in STOP_SIGNALS for sign in (-number, of_signal(number))}
_LOST_PEER = re.compile(r"connection (was )?(closed|reset|refused)|broken pipe|gloo/transport", re.IGNORECASE)
_TIMEOUT = re.compile(r"(?:timed out (?:waiting|after)|wait timeout after) (\d+) ?(ms|s)", re.IGNORECASE)
"""Timeout messages of gloo and torch's stores."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """The end of one rank."""

    rank: int = 0
    when: float = field(default_factory=lambda: time.time())  # noqa: PLW0108  in seconds since the epoch; tests move it
    exit_code: int = CRASH  # `USER_ERROR` or `CRASH`; another one: the ranks have not failed, but stopped
    text: str
    lost_peer: bool = False  # it lost its connection to another rank: a consequence rather than the cause
    interrupted: bool = False  # Ctrl-C, SIGTERM or SIGHUP ended the rank
    asked: bool = False  # a launcher had got such a signal before, which asks the run to end; or its time is over
    of_launcher: bool = False  # a host or the launcher program failed, which the text names; `rank` has no meaning
    reported: bool = False  # the rank has printed itself what is wrong
    passing: bool = False  # may be gone at a restart: a host is down, a device is missing, the run directory is in use
    absent: tuple[str, ...] = ()  # hosts of a hostfile that have not joined, which is `passing` too
    place: int | None = None  # of the node that failed rather than a rank of it
    host: str = ""  # name of that node

    def __post_init__(self) -> None:
        object.__setattr__(self, "absent", tuple(self.absent))  # JSON has lists
        object.__setattr__(self, "passing", self.passing or bool(self.absent))

    @classmethod
    def of(cls, error: BaseException, rank: int, *, with_traceback: bool) -> Failure:
        """Describe an exception: a known error by its message, anything else (or if asked) by its traceback."""
        # A timeout of a wait for another rank is known too: its traceback does not name that rank.
        known, lost_peer = isinstance(error, PretrainError), _is_lost_peer(error)
        names_ranks = isinstance(error, NotFiniteError | LostRanksError)
        message = str(error) if known else _timeout_message(str(error)) if lost_peer else ""
        plain = bool(message) and not with_traceback
        return cls(
            rank=rank,
            exit_code=exit_code_of(error),
            text=message if plain else "".join(traceback.format_exception(error)).rstrip(),
            lost_peer=isinstance(error, OtherRankError) or (not known and lost_peer),
            of_launcher=names_ranks and plain,
            passing=isinstance(error, DeviceError | InUseError),
        )

    @classmethod
    def from_exit_code(cls, rank: int, returncode: int, last_place: str = "") -> Failure:
        """Describe a rank that left no failure file; a negative code is a signal, as of `subprocess.Popen`."""
        if returncode in WELL:
            text = (
                f"It exited with code {returncode} before its work was done: a plugin or a library ended the process "
                "(exit, os._exit)."
            )
        elif returncode >= 0:
            text = f"It ended with exit code {returncode} and no Python error: look at its output above."
        else:
            text = f"It was killed by {_signal_name(-returncode)}."
            if returncode == -signal.SIGKILL:
                text += " On Linux the usual cause is the out-of-memory killer: see `dmesg`."
        if last_place:
            text += f"\nIt was last in {last_place}."
        return cls(rank=rank, text=text, interrupted=returncode in _INTERRUPTED)

    @classmethod
    def of_report(cls, rank: int) -> Failure:
        """Describe a rank that has printed what is wrong; a failure of another rank is shown rather than it."""
        text = "It has printed what is wrong: look at its output above."
        return cls(rank=rank, text=text, lost_peer=True, reported=True)

    @classmethod
    def left_behind(cls, rank: int, pid: int, seconds: float) -> Failure:
        """Describe a rank that still runs so many seconds after another has ended."""
        text = (
            f"It still ran {seconds:g} s after another rank of this node had ended, and was killed (process {pid}).\n"
            "It was stopped (`kill -STOP`, a debugger), or a library of its device hangs when a process ends."
        )
        return cls(rank=rank, text=text)

    @classmethod
    def of_stop(cls, end: End) -> Failure:
        """Describe ranks that have left before the end of the training without a failure."""
        what = "saved and left" if end.code == ExitCode.SAVED else "left, and saved nothing"
        text = f"{'A rank got ' if end.by_signal else ''}{end.reason}: all ranks have {what}."
        return cls(exit_code=end.code, text=text, of_launcher=True, asked=not end.by_signal)

    @property
    def stopped(self) -> bool:
        """True of ranks that have left in good order before the end of the training: `exit_code` says whether saved."""
        return self.exit_code not in {USER_ERROR, CRASH}

    @property
    def expected(self) -> bool:
        """True for a user error."""
        return self.exit_code == USER_ERROR

    def write(self, path: Path) -> None:
        """Write the failure for the parent, completely or not at all; OSError: no room, or the parent has ended."""
        with replacing(path, error=None, durable=False, make_folders=False) as stream:
            stream.write(json.dumps(dataclasses.asdict(self)).encode())

    @classmethod
    def read(cls, path: Path) -> Failure | None:
        """Return the failure of a rank, or None."""
        return cls(**json.loads(path.read_text())) if path.exists() else None

    def __str__(self) -> str:
        if self.of_launcher:
            return self.text
        if self.expected:
            return self.text if self.rank == 0 else f"rank {self.rank}: {self.text}"
        return f"rank {self.rank} failed:\n{self.text}"


def root_cause(failures: Iterable[Failure]) -> Failure:
    """Return the first failure that is not the consequence of another; of equal texts, that of the lowest rank."""
    ordered = sorted(failures, key=lambda failure: (failure.lost_peer, failure.when))
    first = ordered[0]
    lowest = min((failure for failure in ordered if failure.text == first.text), key=lambda failure: failure.rank)
    return lowest if lowest.lost_peer == first.lost_peer else dataclasses.replace(lowest, lost_peer=first.lost_peer)


def _is_lost_peer(error: BaseException) -> bool:
    # By name: torch's classes are not imported to describe an error of something else.
    of_torch = any(kind.__name__ == "DistError" for kind in type(error).__mro__)
    return of_torch or isinstance(error, ConnectionError) or bool(_LOST_PEER.search(str(error)))


def _timeout_message(text: str) -> str:
    """Return two lines about a timeout of a wait for another rank; "" for another error."""
    waited = _TIMEOUT.search(text)
    if waited is None:
        return ""
    seconds = int(waited[1]) / (1000 if waited[2].lower() == "ms" else 1)
    return (
        f"It waited {seconds:g} s for another rank and timed out: one is stopped, hangs, or is too slow.\n"
        "Look at the other ranks' processes (`ps` shows stopped ones as T, `py-spy dump --pid PID` where one hangs) "
        "and the network between them; slow ones need more parallel.distributed_timeout_minutes."
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
