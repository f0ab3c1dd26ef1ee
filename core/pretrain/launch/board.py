"""What the launcher and the ranks of several hosts tell each other: a folder that all of them see."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.errors import LaunchError
from pretrain.launch.job import Job
from pretrain.launch.processes.failure import Failure

if TYPE_CHECKING:
    from collections.abc import Mapping

END = "END"
"""The order to leave at once; other orders are names of signals, for rank 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What every rank does.

    Attributes:
        job: the run; prepared.
        launcher: who starts the ranks, one of `LAUNCHERS`.
        variables: environment variables that are the same for all ranks; those of the rank's host win.
    """

    job: Job
    launcher: str
    variables: Mapping[str, str]


class Board:
    """The folder, from either side.

    There are the task, one order, whatever the failed ranks have left, and marks of rank 0. The order is there from the
    beginning and is written in place: of a file that it knows, a network file system asks anew whenever it is opened,
    while it may believe for a minute that one is still absent.
    """

    def __init__(self, folder: Path) -> None:
        """Use a folder that `pin` has made."""
        self.folder = folder

    @classmethod
    def pin(cls, run_dir: Path, task: Task) -> Board:
        """Make the folder inside of the run directory, and that if it is absent."""
        run_dir.mkdir(parents=True, exist_ok=True)
        board = cls(Path(tempfile.mkdtemp(prefix=".launch-", dir=run_dir)))
        board._order.touch()
        board._task.write_text(json.dumps(dataclasses.asdict(task)), encoding="utf-8")
        return board

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def task(self) -> Task:
        """Return what the ranks do.

        Raises:
            LaunchError: the folder is not there: this host does not see the launcher's files.
        """
        try:
            values = json.loads(self._task.read_text(encoding="utf-8"))
        except OSError as error:
            msg = (
                f"{self.folder} cannot be read on this host ({error.strerror}).\n"
                "All hosts of a hostfile share their files: pass a --run-dir that every one of them sees."
            )
            raise LaunchError(msg) from error
        return Task(**{**values, "job": Job.from_json(json.dumps(values["job"]))})

    def give(self, order: str) -> None:
        """Give an order; the last one counts."""
        self._order.write_text(order, encoding="utf-8")

    def order(self) -> str:
        """Return the order, or an empty string; `END` if the launcher has left and taken the folder with it."""
        try:
            return self._order.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return END
        except OSError:  # A file system that is away for a while is no reason to lose the training.
            return ""

    def failure_file(self, who: int | str) -> Path:
        """Return where a rank, or "launcher", leaves why it ended."""
        return self.folder / f"failure-{who}.json"

    def failures(self) -> list[Failure]:
        """Return what failed ranks, or the launcher, have left."""
        found = (Failure.read(path) for path in self.folder.glob("failure-*.json"))
        return [failure for failure in found if failure]

    def last_words(self, world_size: int) -> list[Failure]:
        """Return the same, once, after the end: each is looked up by its name, as a listing may be a minute old."""
        found = (Failure.read(self.failure_file(who)) for who in ("launcher", *range(world_size)))
        return [failure for failure in found if failure]

    def begin(self) -> None:
        """Say, on rank 0, that there is somebody to take a signal."""
        (self.folder / "begun").touch()

    def begun(self) -> bool:
        """Say whether rank 0 has begun."""
        return (self.folder / "begun").exists()

    def finish(self) -> None:
        """Say, on rank 0, that the training has ended as it should."""
        (self.folder / "finished").touch()

    def finished(self) -> bool:
        """Say whether rank 0 has finished."""
        return (self.folder / "finished").exists()

    @property
    def _order(self) -> Path:
        return self.folder / "order"

    @property
    def _task(self) -> Path:
        return self.folder / "task.json"
