"""Owner of a folder of checkpoints: the one run that may save there.

Its identity is in `.run_id` of its directory, and in `owner.json` of the folder.
"""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrain.atomic_files import replacing
from pretrain.checkpoint.folder import LATEST, OWNER
from pretrain.checkpoint.stored_folder import folder_of_run
from pretrain.errors import CheckpointError

if TYPE_CHECKING:
    from pretrain.checkpoint.folder import CheckpointFolder
    from pretrain.recipe import Recipe

ID = ".run_id"


def require_own(recipe: Recipe, run_dir: Path | None, *, resume: bool) -> None:
    """Check that the run may save into its recipe's folder: it is empty, its own, or the one that it continues."""
    checkpoint = recipe.checkpoint
    folder = _saves_into(recipe, run_dir)
    if folder is None or (run_dir is not None and folder.is_inside(run_dir)):
        return  # not saved at all, or inside the run's own directory, which may be a copy
    owner = owner_of(folder)
    if not owner and not folder.iterations() and folder.read(LATEST) is None:
        return
    if owner and run_dir is not None and owner.get("run") == run_identity(run_dir):
        return
    if not owner and resume:  # a run of a version whose folders had no owner
        return
    if checkpoint.load is not None and folder.is_at(checkpoint.load) and not checkpoint.finetune:
        return
    whose = f" ({owner['run_dir']})" if owner.get("run_dir") else ""
    there = ", ".join(map(str, folder.iterations())) or "none yet"
    msg = (
        f"checkpoint.save: {folder.place} has the checkpoints of another run{whose}: {there}.\n"
        f"Name another folder; or continue them: set checkpoint.load={folder.place} as well, or --resume that run."
    )
    raise CheckpointError(msg)


def claim(recipe: Recipe, run_dir: Path, *, resume: bool) -> None:
    """Write the run into the folder that it saves into; called by one rank, before the first save."""
    folder = _saves_into(recipe, run_dir)
    if folder is None:
        return
    require_own(recipe, run_dir, resume=resume)
    folder.require_writable()
    identity = run_identity(run_dir) or uuid.uuid4().hex
    owner = {"run": identity, "run_dir": str(run_dir.absolute())}
    with folder.written():
        with replacing(run_dir / ID, error=None) as stream:
            stream.write(f"{identity}\n".encode())
        folder.write(OWNER, f"{json.dumps(owner)}\n".encode())


def _saves_into(recipe: Recipe, run_dir: Path | None) -> CheckpointFolder | None:
    """Return the folder that the run saves into; None if it saves nothing, or into a directory that does not exist."""
    save = recipe.checkpoint.save
    if save is False or (save is True and run_dir is None):
        return None
    return folder_of_run(recipe, run_dir or Path())


def run_identity(run_dir: Path) -> str | None:
    """Return a run's identity; None before its first save, or without one."""
    with suppress(OSError):
        return (run_dir / ID).read_text().strip() or None
    return None


def owner_of(folder: CheckpointFolder) -> dict[str, Any]:
    """Return the identity (`run`) and the `run_dir` of the run that may save into a folder; {}: it tells of none."""
    with suppress(OSError, ValueError):
        owner = json.loads(folder.read(OWNER) or b"{}")
        if isinstance(owner, dict):
            return owner
    return {}
