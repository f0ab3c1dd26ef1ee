"""Checks and creation of a run directory."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

from pretrain.errors import RunError

RUNS = Path("runs")
_OF_A_RUN = ("recipe.yml", "metrics.jsonl", "checkpoints")


def holds_run(run_dir: Path) -> bool:
    """Say whether a run has begun in the directory."""
    return any((run_dir / name).exists() for name in _OF_A_RUN)


def check_run_dir(run_dir: Path | None, *, resume: bool, auto: bool = False) -> None:
    """Check that the directory holds a run if it is to be resumed, and none otherwise.

    Args:
        run_dir: as given; None for a new one.
        resume: whether it must hold a run.
        auto: --auto-resume has decided that; then a run without any complete file is accepted, and the directory must
            be given.

    Raises:
        RunError: it does not.
    """
    if run_dir is not None and str(run_dir) in {"", "."}:
        msg = "--run-dir: an empty path, or the working directory itself.\nName a folder for the run."
        raise RunError(msg)
    if run_dir is None:
        if resume or auto:
            option = "--auto-resume" if auto else "--resume"
            msg = f"{option} needs the run to continue: pass --run-dir DIR.{_latest()}"
            raise RunError(msg)
        return
    if run_dir.exists() and not run_dir.is_dir():
        msg = f"--run-dir {run_dir}: not a directory."
        raise RunError(msg)
    _check_writable(run_dir)
    held = [name for name in _OF_A_RUN if (run_dir / name).exists()]
    if resume and "recipe.yml" not in held and not auto:
        msg = (
            f"--run-dir {run_dir} holds no run to resume (no recipe.yml).\n"
            "Leave out --resume to start one there; --auto-resume starts or resumes."
        )
        raise RunError(msg)
    if held and not resume:
        msg = (
            f"--run-dir {run_dir} already holds a run ({', '.join(held)}).\n"
            "Pass --resume to continue it (--auto-resume in a script that is repeated), or another --run-dir."
        )
        raise RunError(msg)


def new_run_dir(name: str) -> Path:
    """Create and return runs/NAME-DATE-TIME; a number is added if another run has just taken that."""
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for attempt in itertools.count(1):
        run_dir = RUNS / (stem if attempt == 1 else f"{stem}-{attempt}")
        try:
            run_dir.mkdir(parents=True)
        except FileExistsError:
            continue
        return run_dir
    raise AssertionError


def existing_folder(run_dir: Path) -> Path:
    """Return the directory, or the nearest one above it that exists."""
    return next(folder for folder in (run_dir.absolute(), *run_dir.absolute().parents) if folder.exists())


def _check_writable(run_dir: Path) -> None:
    """Check that the directory exists or can be made."""
    nearest = existing_folder(run_dir)
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        msg = f"--run-dir {run_dir}: {nearest} is not a writable folder.\nName another one."
        raise RunError(msg)


def _latest() -> str:
    runs = [path.parent for path in RUNS.glob("*/recipe.yml")]
    return f"\nThe latest here is {max(runs, key=lambda run: run.stat().st_mtime)}." if runs else ""
