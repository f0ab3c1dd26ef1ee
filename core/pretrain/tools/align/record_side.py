"""Recording of one side: here, or in a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.errors import RunError
from pretrain.launch.job import ForwardJob
from pretrain.tools.align.side_process import run_pretrain

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pretrain.tools.align.side import Side

RECORD = "pretrain.tools.align.recording.record_rank:record"


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
    words = ["align", str(side.recipe), "--backend", side.backend, "--record", str(folder)]
    words += ["--steps", str(steps), "--positions", str(positions), *_set(side.overrides)]
    words += [] if side.nproc is None else ["--nproc", str(side.nproc)]
    words += [] if side.checkpoint is None else ["--checkpoint", str(side.checkpoint)]
    return run_pretrain(side.python, words)


def explain_in_process(side: Side) -> int:
    """Ask `pretrain explain`, in a process of its own, for the kernels of a side; return its exit code.

    It finds mistakes in the names of kernels, and in another installation those in keys and in the backend's name.

    Raises:
        RunError: the interpreter cannot be started.
    """
    words = ["explain", str(side.recipe), "--backend", side.backend, *_set(side.comparable())]
    return run_pretrain(side.python, words, shows_output=False)


def _set(overrides: Iterable[str]) -> list[str]:
    return [word for override in overrides for word in ("--set", override)]
