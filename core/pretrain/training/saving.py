"""Checkpoints of a run, from the loop's point of view."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch.distributed as dist

from pretrain.checkpoint.folder import LATEST, CheckpointFolder
from pretrain.errors import CheckpointError
from pretrain.training.progress import Progress

if TYPE_CHECKING:
    from pathlib import Path

    from pretrain.engine.protocol import Engine
    from pretrain.recipe import Recipe


@dataclass(slots=True)
class Saving:
    """Writes checkpoints into one folder, each iteration once.

    Attributes:
        folder: where.
        rank: of this process; rank 0 makes and removes folders.
    """

    folder: CheckpointFolder
    rank: int
    _saved: int | None = field(default=None, init=False)

    def is_done(self, progress: Progress) -> bool:
        """Say whether this iteration has been saved, or is what was loaded."""
        return self._saved == progress.iteration

    def save(self, engine: Engine, progress: Progress) -> Path:
        """Write a checkpoint and return its folder; all ranks together."""
        write = partial(engine.save, progress=progress.to_mapping())
        saved = self.folder.save(progress.iteration, write, is_main=self.rank == 0, barrier=dist.barrier)
        self._saved = progress.iteration
        return saved

    def mark_loaded(self, progress: Progress) -> None:
        """Remember that this iteration's checkpoint is the one that was loaded."""
        self._saved = progress.iteration


def folder_of(recipe: Recipe, run_dir: Path) -> CheckpointFolder:
    """Return where the run saves: RUN/checkpoints, or the folder that `checkpoint.save` names."""
    save = recipe.checkpoint.save
    path = run_dir / "checkpoints" if isinstance(save, bool) else type(run_dir)(save)
    return CheckpointFolder(path, recipe.checkpoint.keep)


def start_from(recipe: Recipe, engine: Engine, run_dir: Path, *, resume: bool) -> tuple[Progress, str]:
    """Load what the run starts from and return how far it is, with a remark for the journal.

    A resumed run takes its own latest checkpoint; without one, and for a new run, `checkpoint.load` counts.

    Raises:
        CheckpointError: `checkpoint.load` has no checkpoint, or one that does not fit.
    """
    own = folder_of(recipe, run_dir)
    latest = own.latest() if resume else None
    if latest is not None:
        loaded = engine.load(own.directory(latest), weights_only=False)
        remark = "\n".join((f"resumed from {own.directory(latest)}", *loaded.notices))
        return Progress.from_mapping(loaded.progress), remark
    if recipe.checkpoint.load is None:
        return Progress(), "no checkpoint yet: started from the beginning" if resume else ""
    given = CheckpointFolder(type(run_dir)(recipe.checkpoint.load))
    latest = given.latest()
    if latest is None:
        msg = (
            f"checkpoint.load: {given.path} holds no checkpoint ({LATEST} is missing).\n"
            "Name the folder that holds iter_* folders, such as RUN/checkpoints."
        )
        raise CheckpointError(msg)
    finetune = recipe.checkpoint.finetune
    loaded = engine.load(given.directory(latest), weights_only=finetune)
    origin = f"{'weights' if finetune else 'continued'} from {given.directory(latest)}"
    remark = "\n".join((origin, *loaded.notices))
    return (Progress() if finetune else Progress.from_mapping(loaded.progress)), remark
