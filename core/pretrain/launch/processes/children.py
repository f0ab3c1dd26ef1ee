"""Rank processes of one node, children of this process."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pretrain.launch.job import ForwardJob
from pretrain.launch.processes.failure import Failure
from pretrain.launch.processes.rank import FAILURE_FILE, PARENT, place_file, read_end
from pretrain.launch.processes.rank_starter import RankStarter
from pretrain.launch.processes.supervision import supervise
from pretrain.launch.world import default_variables
from pretrain.report.environment_file import COMMAND
from pretrain.report.hang.position import last_place, place_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.exit_codes import End
    from pretrain.launch.job import AnyJob
    from pretrain.launch.processes.rank_starter import RankProcess
    from pretrain.launch.world import World


_AFTER_REPORT = 0.9
"""Seconds that ranks have to end once one has reported what is wrong: less than a rank that has lost the others waits
before it reports too (`pretrain.tools.doctor.ranks.step_sequence`)."""
_LETTING_GO = 60.0  # seconds that a device has to let go of a process that was killed
_ENDLESS = (
    "rank {rank} still runs {seconds:g} s after SIGKILL (process {pid}): it is blocked in a file system or a driver. "
    "It may hold its device until it ends or the host is rebooted.\n"
)


@dataclass(frozen=True, slots=True)
class _Child:
    rank: int
    process: RankProcess
    failure_file: Path

    def end(self) -> End | None:
        """Return how it says that it has ended; None if it runs, or does not say it."""
        code = self.process.poll()
        return None if code is None else read_end(self.failure_file, code)

    def failure(self) -> Failure | None:
        """Return why it has failed, also with exit code 0; None if it runs or has done its work."""
        code = self.process.poll()
        if code is None or ((end := self.end()) is not None and end.code == code):
            return None
        last = last_place(place_file(self.failure_file))
        where = place_words(last) if last else ""
        return Failure.read(self.failure_file) or Failure.from_exit_code(self.rank, code, where)


class Processes:
    """Rank processes that are started on entering a with-block, and all ended on leaving it."""

    def __init__(self, job: AnyJob, worlds: Sequence[World], starter: RankStarter | None = None) -> None:
        self._job, self._worlds = job, worlds
        self._starter = starter or RankStarter(forks=False)
        self._children: list[_Child] = []
        self._endless: set[int] = set()
        self._first_end: float | None = None
        self._reported: float | None = None

    def __enter__(self) -> Self:
        self._folder = RankFolder()
        try:
            for world in self._worlds:
                self._children.append(self._start(world))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._folder.remove()

    def run(self) -> Failure | None:
        """Start the ranks and wait until all have ended; returns and raises as `supervise`."""
        patience = self._job.patience if isinstance(self._job, ForwardJob) else None

        def poll() -> Failure | None:
            return self.poll() or (self.left_behind(patience) if patience is not None else None)

        with self:
            return supervise(self, poll, failure_ends=patience is None)

    def poll(self) -> Failure | None:
        """Return why the ranks must end though none of them has failed; asked once a second."""
        return None

    def running(self) -> bool:
        """Say whether any rank still runs."""
        return bool(self._running())

    def failures(self) -> list[Failure]:
        """Return the failures of ranks."""
        return [failure for child in self._children if (failure := child.failure()) is not None]

    def stop(self) -> Failure | None:
        """Return why all ranks have left before the end of the training; None if they have not."""
        ends = (child.end() for child in self._children)
        return next((Failure.of_stop(end) for end in ends if end is not None and end.code), None)

    def told(self) -> list[Failure]:
        """Return the failures that ranks have told which still run, as they write a checkpoint first."""
        return [told for child in self._running() if (told := Failure.read(child.failure_file))]

    def left_behind(self, patience: float) -> Failure | None:
        """Return the failure of a rank that still runs so many seconds after another was first seen to have ended."""
        # A rank that is stopped, or hangs at its end, would keep the launcher waiting without end. Where one of the
        # ranks that have ended has reported, its report is returned, and soon: it names the others.
        running = self._running()
        if not running or len(running) == len(self._children):
            return None
        self._first_end = self._first_end or time.monotonic()
        report = next((each for each in self.failures() if each.reported), None)
        if report is not None:
            self._reported = self._reported or time.monotonic()
            return report if time.monotonic() - self._reported > _AFTER_REPORT else None
        if time.monotonic() - self._first_end < patience:
            return None
        return Failure.left_behind(running[0].rank, running[0].process.pid, patience)

    def send(self, number: int) -> None:
        """Send a signal to every rank that runs, but not to the processes that a rank started."""
        for child in self._children:
            child.process.send_signal(number)

    def kill(self) -> None:
        """End every rank that still runs, and what it started, at once; name those that the system does not end."""
        running = [child for child in self._running() if child.rank not in self._endless]
        for child in running:
            with suppress(ProcessLookupError):
                os.killpg(child.process.pid, signal.SIGKILL)
        deadline = time.monotonic() + _LETTING_GO
        for child in running:
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._endless.add(child.rank)
                sys.stderr.write(_ENDLESS.format(rank=child.rank, pid=child.process.pid, seconds=_LETTING_GO))

    def _running(self) -> list[_Child]:
        return [child for child in self._children if child.process.poll() is None]

    def _start(self, world: World) -> _Child:
        failure_file = self._folder.path / f"{world.rank}.json"
        own = {**world.environment(), FAILURE_FILE: str(failure_file)}
        process = self._starter.start(self._job, _common_variables(world.local_world_size), own)
        return _Child(world.rank, process, failure_file)


def prepare_ranks(job: AnyJob, nproc: int, starter: RankStarter) -> None:
    """Let the imports of ranks begin that may be started here later."""
    starter.prepare(job, _common_variables(nproc))


def _common_variables(nproc: int) -> dict[str, str]:
    return {
        **default_variables(nproc),
        **os.environ,  # what the user has set stays
        COMMAND: os.environ.get(COMMAND) or shlex.join(sys.argv),
        PARENT: str(os.getpid()),
    }


_PREFIX, _MARK = "pretrain-ranks-", "lock"


class RankFolder:
    """Temporary folder of this launcher's ranks; making it removes those of launchers that were killed."""

    def __init__(self) -> None:
        _remove_left()
        made = Path(tempfile.mkdtemp(prefix="pretrain-new-"))
        (made / _MARK).touch()  # without it the folder is somebody else's
        self._lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Locked before it has the name by which others find it.
        self.path = made.rename(made.with_name(made.name.replace("pretrain-new-", _PREFIX, 1)))

    def remove(self) -> None:
        """Remove the folder; called once."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_left() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another user's; in use (the lock is refused); or removed by another launcher
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                (folder / _MARK).unlink()
                shutil.rmtree(folder)
            finally:
                os.close(lock)
