"""`pretrain evaluate RECIPE`: loss and perplexity of a checkpoint, without training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pretrain.cli.options import EvaluateCommand, LocalPath, RankCounts, backend_option, rank_options, set_option
from pretrain.cli.run import place_of_process, start_ranks
from pretrain.cli.stored_path import StoredPath
from pretrain.errors import CheckpointError, RecipeError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pretrain.recipe import Recipe

_SPLITS = ("train", "valid", "test")


@click.command(cls=EvaluateCommand)
@click.argument("recipe", type=StoredPath(is_checkpoint=True), metavar="RECIPE|RUN|CHECKPOINT")
@click.option(
    "--load",
    type=StoredPath(is_checkpoint=True),
    metavar="PATH",
    help="A run directory, the folder or s3:// address of its checkpoints (the latest is taken), or one of them. "
    " [default: the run's, or the recipe's checkpoint.load]",
)
@click.option(
    "--split", type=click.Choice(_SPLITS[1:]), help="Held-out text to evaluate.  [default: all that there is]"
)
@click.option(
    "--iters",
    type=click.IntRange(min=1),
    metavar="N",
    help="Global batches to take.  [default: the recipe's evaluation.iters]",
)
@click.option(
    "--tasks",
    metavar="NAME,...",
    help="Tasks of lm-evaluation-harness (pip install 'pretrain[eval]') instead of held-out text.",
)
@click.option(
    "--num-fewshot",
    type=click.IntRange(min=0),
    metavar="K",
    help="Examples before each question.  [default: the recipe's evaluation.tasks_num_fewshot, or the task's]",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="First documents of each task.  [default: the recipe's evaluation.tasks_limit, or all]",
)
@click.option(
    "--include-path",
    type=LocalPath(),
    metavar="DIR",
    help="Folder with further tasks, as YAML.  [default: the recipe's evaluation.tasks_include_path]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@backend_option
@set_option
@rank_options
def command(
    *,
    recipe: Path,
    load: Path | None,
    split: str | None,
    iters: int | None,
    tasks: str | None,
    num_fewshot: int | None,
    limit: int | None,
    include_path: Path | None,
    as_json: bool,
    backend: str,
    overrides: tuple[str, ...],
    **counts: Any,
) -> int:
    """Evaluate a checkpoint on the held-out text of RECIPE, a YAML file, or of RUN, a run directory.

    CHECKPOINT is the folder of RUN's checkpoints, or one of them.

    The losses are those that the training prints, from the same samples, kernels and layout; without an optimizer in
    memory, and without ZeRO. Only losses go to standard output, and only indices of the data are written.

    With --tasks the table of lm-evaluation-harness goes to standard output, and the results into RUN's metrics.jsonl
    and report.html.
    """
    from pretrain.launch.job import EVALUATE, EVALUATE_TASKS, ForwardJob  # noqa: PLC0415  --help needs none of these
    from pretrain.launch.placement import make_placement  # noqa: PLC0415
    from pretrain.launch.run_directory import checkpoints_of  # noqa: PLC0415
    from pretrain.recipe import load_recipe  # noqa: PLC0415

    world, nodes, nproc = place_of_process(RankCounts(**counts))
    beside = _recipe_beside(recipe, load)
    file = beside or recipe
    loaded = load_recipe(file, overrides)
    source = load or (recipe if beside else _named(loaded))
    of_tasks = {"num_fewshot": num_fewshot, "limit": limit, "include_path": include_path and str(include_path)}
    _require_together(tasks, {"split": split, "iters": iters}, of_tasks)
    options: dict[str, Any]
    common = {"checkpoint": str(checkpoints_of(source)), "as_json": as_json}
    if tasks is None:
        function, options = EVALUATE, {"splits": _splits(loaded, split), "iters": iters}
    else:
        function, options = EVALUATE_TASKS, {"tasks": _names(tasks), "run_dir": _run_of(beside, source), **of_tasks}
    placement = make_placement(file, overrides, backend, nodes=nodes, nproc=nproc, world=world)
    if placement.notice:
        click.echo(placement.notice, err=True)
    job = ForwardJob(
        recipe=str(file),
        overrides=overrides,
        backend=backend,
        function=function,
        options={**common, **options},
        reads_data=tasks is None,
    )
    return start_ranks(placement, job, world)


def _recipe_beside(given: Path, load: Path | None) -> Path | None:
    """Return the recipe of a run, or of the run of a checkpoint, that is given; None for a recipe."""
    from pretrain.launch.run_directory import is_run, recipe_of  # noqa: PLC0415  as above

    if not given.exists():
        msg = (
            f"{given}: there is neither a recipe nor a run directory of that name.\n"
            "Give the path of a YAML file, or the directory of a run: the one that it printed, or its --run-dir; "
            "or one of its checkpoints."
        )
        raise RecipeError(msg)
    if not given.is_dir():
        return None
    found = recipe_of(given)
    if found is None:
        msg = (
            f"{given}: there is no recipe.yml beside it.\n"
            f"A checkpoint outside of a run needs a recipe: pretrain evaluate RECIPE --load {given}"
        )
        raise RecipeError(msg)
    if load is not None and not is_run(given):
        msg = f"{given} names a checkpoint, and --load {load} another.\nLeave one of them out."
        raise click.UsageError(msg)
    return found


def _require_together(tasks: str | None, of_text: Mapping[str, Any], of_tasks: Mapping[str, Any]) -> None:
    """Refuse an option that would have no effect."""
    for name, value in (of_tasks if tasks is None else of_text).items():
        if value is not None:
            beside = "without --tasks. Name tasks, or leave it out." if tasks is None else "with --tasks. Leave it out."
            msg = f"--{name.replace('_', '-')} has no effect {beside}"
            raise click.UsageError(msg)


def _names(tasks: str) -> list[str]:
    """Return the names that are separated by commas, each once."""
    names = list(dict.fromkeys(name.strip() for name in tasks.split(",") if name.strip()))
    if not names:
        msg = "--tasks names no task. `lm_eval ls tasks` lists them."
        raise click.UsageError(msg)
    return names


def _run_of(recipe: Path | None, source: Path) -> str | None:
    """Return the run to which the results belong: that of this recipe, unless --load names another's checkpoint."""
    from pretrain.launch.run_directory import place_of_checkpoints  # noqa: PLC0415  as above

    if recipe is None:  # of no run
        return None
    own, evaluated = place_of_checkpoints(recipe.parent), place_of_checkpoints(source)
    return str(recipe.parent) if own in {evaluated, evaluated.rpartition("/")[0]} else None


def _named(recipe: Recipe) -> Path:
    from pretrain.checkpoint.stored_folder import checkpoint_folder  # noqa: PLC0415  as above

    if recipe.checkpoint.load is None:
        msg = (
            f"{recipe.source} names no checkpoint to evaluate (checkpoint.load).\n"
            "Pass --load with a run directory, its checkpoints or one of them, or give a run instead of the recipe."
        )
        raise CheckpointError(msg)
    return checkpoint_folder(recipe.checkpoint.load)


def _splits(recipe: Recipe, wanted: str | None) -> list[str]:
    """Return the splits to evaluate; each must have documents."""
    has_text = dict(zip(_SPLITS, map(bool, recipe.data.splits), strict=True))
    splits = [name for name in _SPLITS[1:] if (has_text[name] if wanted is None else name == wanted)]
    if not splits or not all(has_text[name] for name in splits):
        raise RecipeError(_no_text(recipe, wanted))
    return splits


def _no_text(recipe: Recipe, wanted: str | None) -> str:
    what = {None: "validation and test", "valid": "validation", "test": "the test"}[wanted]
    if recipe.data.own_files is not None:
        key = f"data.{wanted or 'valid'}_data_path"
        return f"{recipe.source} names no token file for {what}.\nChoose another --split, or --set {key}=PATH."
    return (
        f"{recipe.source}: data.split {recipe.data.split} leaves no document for {what}.\n"
        "Choose another --split, or --set data.split if the training has not read all documents."
    )
