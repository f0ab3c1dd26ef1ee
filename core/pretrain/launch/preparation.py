"""Preparation of a run before its ranks train, once: the run directory and the corpus."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.data.needed import own_corpus
from pretrain.errors import RunError
from pretrain.launch.rank0_broadcast import rank0_decides
from pretrain.launch.run_directory import check_run_dir, new_run_dir
from pretrain.launch.run_lock import held, require_shared, this_process
from pretrain.launch.start_checks import Start, Where, folders_of_checkpoints, require_startable

if TYPE_CHECKING:
    from contextlib import ExitStack

    from pretrain.launch.run_directory import Resume
    from pretrain.launch.world import World
    from pretrain.recipe import Recipe


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """Run directory, and whether its run is resumed."""

    run_dir: Path
    resume: bool


def prepare_run(recipe: Recipe, run_dir: Path | None, lock: ExitStack, resume: Resume) -> PreparedRun:
    """Choose and lock the run directory and build the corpus; called in one process, which outlives the run.

    `lock` holds the run's directory, and its folder of checkpoints, against other runs.
    """
    if _is_restarted(run_dir):
        resume = "auto"
    start = Start(recipe=recipe, run_dir=run_dir, resume=resume)
    require_startable(start, Where.LAUNCHER)
    resumes = start.resumes
    if run_dir is not None:
        lock.enter_context(held(run_dir))
        resumes = check_run_dir(run_dir, resume)  # another run may have begun, and ended, before the lock was ours
    _lock_checkpoints(recipe, run_dir, lock, resume=resumes)
    if recipe.data.corpus is not None:
        own_corpus().prepare_corpus(recipe)
    if run_dir is None:
        run_dir = new_run_dir(Path(recipe.source).stem)
        lock.enter_context(held(run_dir, just_made=True))
    return PreparedRun(run_dir, resumes)


def prepare_together(
    recipe: Recipe, run_dir: Path | None, world: World, lock: ExitStack, resume: Resume
) -> PreparedRun:
    """Call `prepare_run` on rank 0, and return its result on every rank; raises as `rank0_decides`."""

    def decide() -> str:
        prepared = prepare_run(recipe, run_dir, lock, resume)
        return json.dumps([str(prepared.run_dir.absolute()), prepared.resume, *this_process()])

    agreed_dir, agreed_resume, *first = json.loads(rank0_decides(decide, world))
    if world.rank != 0 and world.local_rank == 0:
        require_shared(Path(agreed_dir), tuple(first))
    return PreparedRun(Path(agreed_dir), agreed_resume)


def _lock_checkpoints(recipe: Recipe, run_dir: Path | None, lock: ExitStack, *, resume: bool) -> None:
    from pretrain.checkpoint.owner import require_own  # noqa: PLC0415  --help needs none of it

    require_own(recipe, run_dir, resume=resume)  # once more: the folder may have become another run's
    for folder in folders_of_checkpoints(recipe, run_dir):
        lock.enter_context(held(folder))


def _is_restarted(run_dir: Path | None) -> bool:
    """Say whether torchrun has restarted the ranks after a failure; an error where a restart would not find the run."""
    if run_dir is None and os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0":
        msg = (
            "torchrun --max-restarts starts this command again after a failure: the run must be found again.\n"
            "Pass --run-dir DIR; a restart then continues from the last checkpoint there."
        )
        raise RunError(msg)
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
