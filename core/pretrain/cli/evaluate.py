"""`pretrain evaluate RECIPE`: loss and perplexity of a checkpoint, without training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pretrain.cli.options import EvaluateCommand, LocalPath, RankCounts, backend_option, rank_options, set_option
from pretrain.cli.run import place_of_process, start_ranks
from pretrain.cli.stored_path import StoredPath
from pretrain.errors import CheckpointError, RecipeError

if TYPE_CHECKING:
    from pathlib import Path

    from pretrain.recipe import Recipe

_SPLITS = ("train", "valid", "test")


@click.command(cls=EvaluateCommand)
@click.argument("recipe", type=LocalPath(), metavar="RECIPE|RUN")
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
    as_json: bool,
    backend: str,
    overrides: tuple[str, ...],
    **counts: Any,
) -> int:
    """Evaluate a checkpoint on the held-out text of RECIPE, a YAML file, or of RUN, a run directory.

    The losses are those that the training prints, from the same samples, kernels and layout; without an optimizer in
    memory, and without ZeRO. Only losses go to standard output, and only indices of the data are written.
    """
    from pretrain.launch.job import EVALUATE, ForwardJob  # noqa: PLC0415  --help needs none of these
    from pretrain.launch.placement import make_placement  # noqa: PLC0415
    from pretrain.launch.run_directory import RECIPE, checkpoints_of, is_run  # noqa: PLC0415
    from pretrain.recipe import load_recipe  # noqa: PLC0415

    world, nodes, nproc = place_of_process(RankCounts(**counts))
    file = recipe / RECIPE if is_run(recipe) else recipe
    loaded = load_recipe(file, overrides)
    source = load or (recipe if is_run(recipe) else _named(loaded))
    splits = _splits(loaded, split)
    placement = make_placement(file, overrides, backend, nodes=nodes, nproc=nproc, world=world)
    if placement.notice:
        click.echo(placement.notice, err=True)
    job = ForwardJob(
        recipe=str(file),
        overrides=overrides,
        backend=backend,
        function=EVALUATE,
        options={"checkpoint": str(checkpoints_of(source)), "splits": splits, "iters": iters, "as_json": as_json},
        reads_data=True,
    )
    return start_ranks(placement, job, world)


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
