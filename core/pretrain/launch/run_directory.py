"""Checks and creation of a run directory."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pretrain.atomic_files import existing_folder
from pretrain.errors import RunError, did_you_mean
from pretrain.recipe import load_recipe
from pretrain.stores.address import is_address
from pretrain.stores.local_copies import shown_place

Resume = Literal["no", "run", "auto"]
"""Value of `--resume`: not given; given alone, so that the run must be there; or `auto`, to continue or to start."""
RUNS = Path("runs")
RECIPE = "recipe.yml"
_OF_A_RUN = (RECIPE, "metrics.jsonl", "checkpoints")


def holds_run(run_dir: Path) -> bool:
    """Say whether a run has begun in the directory."""
    return any((run_dir / name).exists() for name in _OF_A_RUN)


def check_run_dir(run_dir: Path | None, resume: Resume) -> bool:
    """Check that the directory can be resumed or started in, as `resume` asks; return whether its run is continued."""
    # With "auto" it may hold a run or not, also one without any complete file, but it must be given.
    if run_dir is not None and str(run_dir) in {"", "."}:
        msg = "--run-dir: an empty path, or the working directory itself.\nName a folder for the run."
        raise RunError(msg)
    if run_dir is None:
        if resume != "no":
            msg = "--resume auto needs a folder that is the same each time: pass --run-dir DIR."
            if resume == "run":
                msg = f"--resume needs the folder of the run to continue: pass --run-dir DIR.{_latest()}"
            raise RunError(msg)
        return False
    if run_dir.exists() and not run_dir.is_dir():
        msg = f"--run-dir {run_dir}: not a directory."
        raise RunError(msg)
    nearest = existing_folder(run_dir)
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        msg = f"--run-dir {run_dir}: {nearest} is not a writable folder.\nName another one."
        raise RunError(msg)
    held = [name for name in _OF_A_RUN if (run_dir / name).exists()]
    if resume == "run" and RECIPE not in held:
        siblings = () if held else (each.name for each in run_dir.parent.glob("*") if is_run(each))
        msg = (
            f"--run-dir {run_dir} holds no run to resume (no recipe.yml).{did_you_mean(run_dir.name, siblings)}\n"
            "Leave out --resume to start one there; --resume auto starts or resumes."
        )
        raise RunError(msg)
    if held and resume == "no":
        msg = (
            f"--run-dir {run_dir} already holds a run ({', '.join(held)}).\n"
            "Pass --resume to continue it (--resume auto in a script that is repeated), or another --run-dir."
        )
        raise RunError(msg)
    return bool(held)


def new_run_dir(name: str) -> Path:
    """Create and return runs/NAME-DATE-TIME; a number is added if another run has just taken that."""
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    run_dir, attempt = RUNS / stem, 1
    while True:
        with suppress(FileExistsError):
            run_dir.mkdir(parents=True)
            return run_dir
        attempt += 1
        run_dir = RUNS / f"{stem}-{attempt}"


def _latest() -> str:
    runs = [path.parent for path in RUNS.glob(f"*/{RECIPE}")]
    return f"\nThe latest here is {max(runs, key=lambda run: run.stat().st_mtime)}." if runs else ""


def is_run(path: Path) -> bool:
    """Say whether a path is the directory of a run."""
    return (path / RECIPE).is_file()


def recipe_of(path: Path) -> Path | None:
    """Return the recipe of the run of a checkpoint (its folder, that of all, or the run's); None: not nearby."""
    from pretrain.checkpoint.folder import CheckpointFolder  # noqa: PLC0415  --help needs none
    from pretrain.checkpoint.owner import owner_of, run_identity  # noqa: PLC0415

    folders = (path, *path.absolute().parents[:2])
    runs = [folder for folder in folders if is_run(folder)]
    owner = owner_of(CheckpointFolder(folders[0])) or owner_of(CheckpointFolder(folders[1]))
    # A recipe.yml above may be of no run; and owner.json of a copied run tells where that was.
    owning = [run for run in runs if run == path or not owner or run_identity(run) == owner.get("run")]
    elsewhere = [Path(str(owner["run_dir"]))] if "run_dir" in owner else []
    return next((run / RECIPE for run in (*owning, *elsewhere, *runs) if is_run(run)), None)


def checkpoints_of(path: Path) -> Path:
    """Return the folder in which a run saves its checkpoints, if the path is a run directory; else the path itself."""
    if not is_run(path):
        return path
    from pretrain.checkpoint.stored_folder import checkpoint_folder, folder_of_run  # noqa: PLC0415  --help needs none

    folder = folder_of_run(load_recipe(path / RECIPE), path)
    return folder.path if folder.is_local else checkpoint_folder(folder.place)


def place_of_checkpoints(path: Path) -> str:
    """Return where `checkpoints_of` is, without links, or the address of what it copies; nothing is copied."""
    from pretrain.checkpoint.stored_folder import folder_of_run  # noqa: PLC0415  as above

    place = folder_of_run(load_recipe(path / RECIPE), path).place if is_run(path) else shown_place(path)
    return place if is_address(place) else str(Path(place).resolve())
