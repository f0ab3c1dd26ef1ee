"""Rank process: `python -m pretrain.launch.processes.rank JOB`. Only the launcher calls it."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pretrain.atomic_files import replacing
from pretrain.errors import shows_traceback
from pretrain.exit_codes import WELL, End, of_signal
from pretrain.launch.job import job_of
from pretrain.launch.processes.early_signals import handle_early_signals
from pretrain.launch.processes.failure import CRASH, Failure
from pretrain.launch.processes.parent_exit import kill_on_parent_exit
from pretrain.launch.schedulers import current_world

if TYPE_CHECKING:
    from pretrain.launch.job import AnyJob
    from pretrain.launch.world import World

PARENT = "PRETRAIN_LAUNCHER_PID"
FAILURE_FILE = "PRETRAIN_FAILURE_FILE"
_END = ".end"
_NO_ROOM = "an unknown reason (the temporary folder is full)"


def main() -> None:
    """Train; write the failure file if that fails, else the file of the end."""
    try:
        handle_early_signals()  # a Ctrl-C that came before is raised here
        sys.exit(_main())
    except KeyboardInterrupt:
        os._exit(of_signal(signal.SIGINT))


def _main() -> int:
    kill_on_parent_exit(int(os.environ[PARENT]))
    world = current_world()
    if world is None:
        msg = "pretrain.launch.processes.rank is started by pretrain itself; run `pretrain RECIPE` instead"
        raise SystemExit(msg)
    failure_file = Path(os.environ[FAILURE_FILE])
    heard = dataclasses.replace(
        world,
        tell_launcher=partial(_tell, world.rank, failure_file),
        tell_error=partial(_tell_error, world.rank, failure_file),
        place_file=place_file(failure_file),
    )
    return train(job_of(sys.argv[1]), heard, failure_file)


def train(job: AnyJob, world: World, failure_file: Path) -> int:
    """Train as one rank; return the exit code, which the file of the end confirms to the launcher."""
    try:
        return _train(job, world, failure_file)
    except KeyboardInterrupt:  # perhaps while a failure, itself a consequence of the interruption, is described
        code = of_signal(signal.SIGINT)
        _exit(Failure.from_exit_code(world.rank, code), failure_file, code)


def _train(job: AnyJob, world: World, failure_file: Path) -> int:
    try:
        end = job.run(world)
        write_end(end, failure_file)
    except Exception as error:  # noqa: BLE001  whatever it is, the launcher shows it
        failure = Failure.of(error, world.rank, with_traceback=shows_traceback())
        with suppress(OSError):  # told before the last checkpoint was written: the first failure is the cause
            told = Failure.read(failure_file)
            failure = dataclasses.replace(failure, when=told.when if told else failure.when)
        _exit(failure, failure_file, failure.exit_code)
    except SystemExit as ended:  # rank 0 could not prepare the run and reports the error, perhaps on another node
        code = ended.code if isinstance(ended.code, int) else CRASH
        failure = Failure.from_exit_code(world.rank, code)
        _exit(dataclasses.replace(failure, lost_peer=True), failure_file, code)
    else:
        return end.code


def place_file(failure_file: Path) -> Path:
    """Return the file of a rank's last place, beside that of its failure."""
    return failure_file.with_suffix(".place")


def read_end(failure_file: Path, code: int) -> End | None:
    """Return how a rank has ended, from the file beside that of its failure; an empty one confirms a code of `WELL`."""
    file = failure_file.with_suffix(_END)
    if not file.exists():
        return None
    if text := file.read_text():
        return End(**json.loads(text))
    return End(code, _NO_ROOM) if code in WELL else None


def write_end(end: End, failure_file: Path) -> None:
    """Write how this rank has ended, for `read_end`; an empty file where there is no room for more."""
    # The launcher then does not know that a signal to this rank alone ended the run, and does not start it again.
    file = failure_file.with_suffix(_END)
    try:
        with replacing(file, error=None, durable=False, make_folders=False) as stream:
            stream.write(json.dumps(dataclasses.asdict(end)).encode())
    except OSError as error:
        file.touch()
        sys.stderr.write(f"warning: {file.parent} cannot be written ({error.strerror}); the work is done.\n")


def _tell(rank: int, failure_file: Path, text: str, is_cause: bool) -> None:
    """Write why this rank is about to end, in words that name the ranks themselves; what it has told before stays."""
    if failure_file.exists():
        return
    Failure(rank=rank, text=text, lost_peer=not is_cause, of_launcher=is_cause).write(failure_file)


def _tell_error(rank: int, failure_file: Path, error: Exception) -> None:
    """Write the error with which this rank will end; ranks that wait for it may end before."""
    with suppress(OSError):  # a full disk: it is printed at the end
        Failure.of(error, rank, with_traceback=shows_traceback()).write(failure_file)


def claim_report() -> bool:
    """Say whether this rank may print the report of all: the first one of its launcher that asks may."""
    # Ranks that have lost each other cannot agree in another way. Without pretrain's launcher every one may.
    file = os.environ.get(FAILURE_FILE)
    try:
        if file:
            Path(file).with_name("report").touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:  # a full disk: two reports are better than none
        pass
    return True


def note_report(rank: int) -> None:
    """Tell the launcher, if there is one, that this rank has printed what is wrong and will end with an exit code."""
    if file := os.environ.get(FAILURE_FILE):
        Failure.of_report(rank).write(Path(file))


def note_end() -> None:
    """Tell the launcher, if there is one, that this rank has done its work, and will end by `os._exit(0)`."""
    if file := os.environ.get(FAILURE_FILE):
        write_end(End(), Path(file))


def _exit(failure: Failure, failure_file: Path, code: int) -> NoReturn:
    """Exit immediately: destroying a process group that has lost a member hangs or logs errors."""
    try:
        failure.write(failure_file)
    except OSError:  # A full disk, or a launcher that has ended: print it instead.
        sys.stderr.write(f"{failure}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
