"""The checkpoint that a run starts from."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pretrain.checkpoint import storage
from pretrain.checkpoint.folder import LATEST, CheckpointFolder
from pretrain.checkpoint.foreign_checkpoints import foreign_checkpoints
from pretrain.checkpoint.starting_checkpoint import is_own_empty_folder, nothing_to_load, own_latest
from pretrain.collectives import on_rank0
from pretrain.errors import CheckpointError, DamageError, MisnamedError
from pretrain.training.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pretrain.checkpoint.contents import Loaded, Saved
    from pretrain.recipe import Recipe

_FRESH = "no checkpoint yet: started from the beginning"


def start_from(recipe: Recipe, engine: Saved, run_dir: Path, *, resume: bool) -> tuple[Progress, str]:
    """Load the checkpoint that the run starts from; return the progress and a remark for the user.

    A resumed run takes its own latest checkpoint; without one, and for a new run, `checkpoint.load` counts.
    """
    own = CheckpointFolder.of(recipe, run_dir)
    if resume and (loaded := load_latest(own, engine, latest=own_latest)):
        return Progress.from_mapping(loaded[1].progress), _remark("resumed", *loaded)
    if recipe.checkpoint.load is None:
        return Progress(), _FRESH if resume else ""
    given = CheckpointFolder(type(run_dir)(recipe.checkpoint.load))
    finetune = recipe.checkpoint.finetune
    others = foreign_checkpoints()
    if foreign := on_rank0(partial(others.foreign_summary, given.path)):
        taken = others.load(engine, given.path, finetune=finetune)
        return Progress.from_mapping(taken.progress), _remark("weights", foreign.path, taken)
    loaded = load_latest(given, engine, weights_only=finetune)
    if loaded is None:
        if is_own_empty_folder(given.path, own.path):
            # The first start of a command that a scheduler repeats: load and save are one folder.
            return Progress(), f"{given.path}: {_FRESH}"
        raise nothing_to_load(given.path)
    progress = Progress() if finetune else Progress.from_mapping(loaded[1].progress)
    return progress, _remark("weights" if finetune else "continued", *loaded)


def load_latest(
    folder: CheckpointFolder,
    engine: Saved,
    *,
    weights_only: bool = False,
    latest: Callable[[CheckpointFolder], int | None] = CheckpointFolder.latest,
) -> tuple[Path, Loaded] | None:
    """Load the folder's latest checkpoint; return its path and the result, or None if there is none."""
    iteration = None
    try:
        iteration = on_rank0(partial(latest, folder))
        if iteration is None:
            return None
        directory = folder.directory(iteration)
        return directory, storage.load(engine, directory, weights_only=weights_only)
    except MisnamedError:  # it is intact, and the message says what to do
        raise
    except DamageError as error:  # every rank has it
        msg = f"{error}\n{_newest_intact(folder, iteration)}"
        raise DamageError(msg) from error


def _newest_intact(folder: CheckpointFolder, damaged: int | None) -> str:
    """Return the advice after a damaged checkpoint, or damaged LATEST (None); all ranks call it together.

    Later ones than the damaged one come last: they belong to a part that was abandoned.
    """
    unverified = []
    there = [each for each in on_rank0(folder.iterations) if each != damaged]
    for iteration in sorted(there, key=lambda each: (damaged is None or each <= damaged, each), reverse=True):
        try:
            common = storage.opened(folder.directory(iteration))
        except CheckpointError:  # damaged too, or of a later format
            continue
        if storage.has_checksums(common):
            return (
                f"The newest intact checkpoint is iteration {iteration}: write {iteration} into "
                f"{folder.path / LATEST}, and start again."
            )
        unverified.append(iteration)
    if unverified:
        return (
            f"No checkpoint with checksums is intact. Iteration {unverified[0]} has none and may be: "
            f"write {unverified[0]} into {folder.path / LATEST}, and start again."
        )
    return f"No checkpoint in {folder.path} is intact: restore a copy, or start a new run."


def _remark(how: str, directory: Path, loaded: Loaded) -> str:
    return "\n".join((f"{how} from {directory}", *loaded.notices))
