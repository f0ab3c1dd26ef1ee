"""What has to be settled once per run before its ranks train: the run directory and the corpus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.launch.agreement import first_rank_decides
from pretrain.launch.inputs import require_inputs
from pretrain.launch.run_directory import check_run_dir, new_run_dir

if TYPE_CHECKING:
    from pretrain.launch.world import World
    from pretrain.recipe import Recipe


def prepare_run(recipe: Recipe, run_dir: Path | None, *, resume: bool) -> Path:
    """Return the run directory, with the corpus of `data.corpus` built. Called in one process only.

    Args:
        recipe: of the run.
        run_dir: as given; None for a new one below runs/.
        resume: whether `run_dir` must hold a run, instead of none.

    Raises:
        RunError: the directory holds a run and must not, or the other way round.
        DataError: the corpus cannot be built, or a tokenizer or token file is missing or damaged.
    """
    check_run_dir(run_dir, resume=resume)
    if recipe.data.corpus is not None:
        from pretrain.data.corpus import prepare_corpus  # noqa: PLC0415  most recipes have their data

        prepare_corpus(recipe)
    else:
        require_inputs(recipe, checkpoint=False)  # many ranks would start only to find that one is missing
    return run_dir or new_run_dir(Path(recipe.source).stem)


def prepare_together(recipe: Recipe, run_dir: Path | None, world: World, *, resume: bool) -> Path:
    """Do on rank 0 what `prepare_run` does and return its result on every rank; the nodes share their files.

    Raises:
        PretrainError: on rank 0, as `prepare_run`.
        SystemExit: on the other ranks, if rank 0 failed.
    """
    return Path(first_rank_decides(lambda: str(prepare_run(recipe, run_dir, resume=resume).absolute()), world))
