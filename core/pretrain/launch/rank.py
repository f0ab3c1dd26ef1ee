"""One rank as a process of its own: `python -m pretrain.launch.rank JOB`. Only the launcher calls it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from pretrain.launch.failure import Failure
from pretrain.launch.job import Job
from pretrain.launch.lineage import die_with
from pretrain.launch.ranks import current_world

PARENT = "PRETRAIN_LAUNCHER_PID"
FAILURE_FILE = "PRETRAIN_FAILURE_FILE"


def main() -> None:
    """Train, and leave the reason in the failure file if that fails."""
    die_with(int(os.environ[PARENT]))
    world = current_world()
    if world is None:
        msg = "pretrain.launch.rank is started by pretrain itself; run `pretrain RECIPE` instead"
        raise SystemExit(msg)
    try:
        Job.from_json(sys.argv[1]).run(world)
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)
    except Exception as error:  # noqa: BLE001  whatever it is, the launcher shows it
        _leave(Failure.of(error, world.rank, with_traceback=_traceback_wanted()))


def _traceback_wanted() -> bool:
    return os.environ.get("PRETRAIN_TRACEBACK", "0") not in {"", "0"}


def _leave(failure: Failure) -> NoReturn:
    """End at once: process groups that have lost a member hang, or complain, when they are torn down."""
    failure.write(Path(os.environ[FAILURE_FILE]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(failure.exit_code)


if __name__ == "__main__":
    main()
