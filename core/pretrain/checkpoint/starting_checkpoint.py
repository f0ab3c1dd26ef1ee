"""Checks of the checkpoint that a run starts from, before anything of it is read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pretrain.checkpoint.folder import FORMAT, LATEST, WITHOUT_CHECKSUMS, CheckpointFolder
from pretrain.checkpoint.foreign_checkpoints import foreign_checkpoints
from pretrain.checkpoint.identity import require_same
from pretrain.checkpoint.stored_folder import checkpoint_folder, folder_of_run
from pretrain.errors import CheckpointError
from pretrain.stores.address import is_address
from pretrain.stores.local_copies import shown_place

if TYPE_CHECKING:
    from pretrain.data.tokenizers.tokenizer import Tokenizer
    from pretrain.recipe import Recipe

READABLE = (WITHOUT_CHECKSUMS, FORMAT)  # formats of checkpoints that this version reads
# files that megatron-core needs to read a sharded checkpoint; .metadata is torch's index
_FILES = ("metadata.json", "common.pt", ".metadata")


def require_start(load: str, own: CheckpointFolder | None, recipe: Recipe) -> Path | None:
    """Return the checkpoint that `checkpoint.load` names; None where the run's `own` has none yet, or if foreign."""
    foreign, is_own = foreign_checkpoints(), own is not None and own.is_at(load)
    if own is not None and is_own and not own.is_local:
        own.latest()  # raises where it is named wrongly; the ranks copy it
        return None
    path = checkpoint_folder(load)
    if summary := foreign.foreign_summary(path):
        if is_own:
            msg = (
                f"checkpoint.save: {load} holds checkpoints of another program ({summary.format}).\n"
                "Name another folder; checkpoint.load may stay."
            )
            raise CheckpointError(msg)
        foreign.require_fitting(summary, recipe)
        return None
    folder = CheckpointFolder(path)
    latest = folder.latest()
    if latest is not None:
        require_complete(folder.directory(latest))
        return folder.directory(latest)
    if not is_own:
        raise nothing_to_load(folder)
    return None


class StartingDirectory(NamedTuple):
    """The folder of a checkpoint, and whether `checkpoint.load` names it: then `checkpoint.finetune` counts."""

    path: Path
    is_given: bool


def starting_directory(recipe: Recipe, run_dir: Path | None, *, resume: bool) -> StartingDirectory | None:
    """Return the checkpoint that a run starts from; None without one here, and for another program's."""
    own = None if run_dir is None else folder_of_run(recipe, run_dir)
    if resume and own is not None and (latest := own_latest(own)) is not None:
        return StartingDirectory(own.directory(latest), is_given=False) if own.is_local else None
    if recipe.checkpoint.load is None:
        return None
    if own is None and isinstance(recipe.checkpoint.save, str):
        own = folder_of_run(recipe, Path())
    path = require_start(recipe.checkpoint.load, own, recipe)
    return None if path is None else StartingDirectory(path, is_given=True)


def own_latest(own: CheckpointFolder) -> int | None:
    """Return the latest checkpoint of a resumed run, which must not start over while it has any."""
    latest, there = own.latest(), own.iterations()
    if latest is not None or not there:
        return latest
    if len(there) == 1:  # the run was killed just before LATEST was to name it, and every iter_* folder is complete
        return there[0]
    msg = (
        f"{own.place} has checkpoints, {', '.join(map(str, there))}, but no {LATEST}.\n"
        "Write the number of the one to continue from into a file of that name; or start a new run."
    )
    raise CheckpointError(msg)


def require_of_recipe(directory: Path, recipe: Recipe, tokenizer: Tokenizer | None, *, weights_only: bool) -> None:
    """Check that a checkpoint of ours is of the recipe's model and precision; no `tokenizer`: it is built later."""
    from pretrain.checkpoint.sharded_format import common_of  # noqa: PLC0415  as in `require_start`

    require_complete(directory)
    common = common_of(directory)
    require_format(directory, common.get("format"))
    size = common["model"].get("vocab_size") if tokenizer is None else tokenizer.vocab_size
    fingerprint = None if weights_only or tokenizer is None else tokenizer.fingerprint
    is_bare = "counters" not in common
    require_same(recipe, size, directory, common, weights_only=weights_only or is_bare, fingerprint=fingerprint)


def require_format(directory: Path, found: object) -> None:
    """Check that this version reads a checkpoint's format."""
    if found not in READABLE:
        formats = " and ".join(map(str, READABLE))
        msg = (
            f"{shown_place(directory)} has checkpoint format {found}; this version reads {formats}.\n"
            "Use the version of pretrain that wrote it, or choose another checkpoint."
        )
        raise CheckpointError(msg)


def require_complete(directory: Path) -> None:
    """Check that the folder of one checkpoint has the files that reading needs."""
    missing = [name for name in _FILES if not (directory / name).is_file()]
    if missing:
        msg = (
            f"{shown_place(directory)} is not a complete checkpoint: {', '.join(missing)} is missing.\n"
            f"Name another folder, or write another iteration into {shown_place(directory.parent)}/{LATEST}."
        )
        raise CheckpointError(msg)


def nothing_to_load(folder: CheckpointFolder) -> CheckpointError:
    """Return the error for a `checkpoint.load` without checkpoints, with a guess at the intended folder."""
    path, place = folder.path, folder.place
    if (path / "checkpoints" / LATEST).is_file():
        todo = f"Did you mean {place}/checkpoints?"
    elif path.name.startswith("iter_") and (is_address(place) or (path.parent / LATEST).is_file()):
        around = place.rpartition("/")[0]
        todo = f"Name the folder around it, {around}; the checkpoint that its {LATEST} names is taken."
    else:
        todo = "Name the folder that holds iter_* folders, such as RUN/checkpoints, or another program's checkpoint."
    return CheckpointError(f"checkpoint.load: {place} holds no checkpoint ({LATEST} is missing).\n{todo}")
