"""Recording of one side: here, or in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from pretrain.errors import RunError
from pretrain.launch.forward_job import ForwardJob

if TYPE_CHECKING:
    from pathlib import Path

    from pretrain.align.side import Side

RECORD = "pretrain.align.recording.record_rank:record"
_MAIN = (
    "from pretrain.launch.processes.parent_exit import kill_on_parent_exit; kill_on_parent_exit({parent}); "
    "from pretrain.cli.main import main; main()"
)


def make_folder(folder: Path) -> None:
    """Make the folder of a recording.

    Raises:
        RunError: there is something in it, or it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            msg = f"{folder} is not empty.\nName another folder, or remove it."
            raise RunError(msg)
    except OSError as error:
        msg = f"{folder} cannot be made: {error.strerror}\nName another folder."
        raise RunError(msg) from error


def job_of(side: Side, folder: Path, *, steps: int, positions: int) -> ForwardJob:
    """Return the job of the ranks that record a side.

    Raises:
        RecipeError: the recipe cannot be run.
    """
    recipe = side.load()
    checkpoint = str(side.checkpoint) if side.checkpoint else recipe.checkpoint.load
    return ForwardJob(
        recipe=str(side.recipe),
        overrides=side.comparable(),
        backend=side.backend,
        function=RECORD,
        options={
            "folder": str(folder.absolute()),
            "steps": steps,
            "positions": positions,
            "checkpoint": checkpoint,
        },
        reads_data=True,
    )


def record_in_process(side: Side, folder: Path, *, steps: int, positions: int) -> int:
    """Record a side by `pretrain align --record` in a process of its own; return its exit code.

    A process has one backend, and may be that of another installation. What it prints goes to standard error.

    Raises:
        RunError: the interpreter cannot be started.
    """
    python = str(side.python or sys.executable)
    command = [
        python,
        "-c",
        _MAIN.format(parent=os.getpid()),
        "align",
        str(side.recipe),
        "--backend",
        side.backend,
        "--record",
        str(folder),
    ]
    command += ["--steps", str(steps), "--positions", str(positions)]
    command += [word for override in side.overrides for word in ("--set", override)]
    command += [] if side.nproc is None else ["--nproc", str(side.nproc)]
    command += [] if side.checkpoint is None else ["--checkpoint", str(side.checkpoint)]
    try:
        with subprocess.Popen(command, stdout=sys.stderr.fileno()) as process:
            try:
                return process.wait()
            except BaseException:  # a signal that asks this process to end
                process.terminate()
                raise
    except OSError as error:
        msg = f"{python} cannot be started: {error.strerror}\n--against-python is an interpreter: .venv/bin/python."
        raise RunError(msg) from error
