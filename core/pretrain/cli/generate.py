"""`pretrain generate RUN --prompt TEXT`: text from a checkpoint."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from pretrain.cli.options import LocalPath, backend_option, set_option
from pretrain.cli.run import start_ranks
from pretrain.cli.stored_path import StoredPath
from pretrain.errors import CheckpointError
from pretrain.launch.nodes.nodes import Nodes
from pretrain.launch.schedulers import current_world

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pretrain.recipe import Recipe

NOTE = "Each token takes a whole forward pass. For an inference server: `pretrain checkpoint convert --to huggingface`."


def _require(is_valid: Callable[[Any], bool], problem: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def check(_: click.Context, __: click.Parameter, value: Any) -> Any:
        if not is_valid(value):
            raise click.BadParameter(problem.format(value))
        return value

    return check


class _Command(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter as error:
            if error.param is None or error.param.name != "prompt":
                raise
            msg = "Missing option '--prompt', the text that the model continues: write --prompt \"TEXT\"."
            raise click.UsageError(msg, ctx) from error


@click.command(cls=_Command, epilog=NOTE)
@click.argument("source", type=StoredPath(is_checkpoint=True), metavar="RUN|CHECKPOINT")
@click.option(
    "--prompt",
    required=True,
    callback=_require(bool, "the prompt is empty. Give at least one character."),
    metavar="TEXT",
    help="Text that the model continues.",
)
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="Tokens after the prompt; fewer if the document ends.",
)
@click.option(
    "--temperature",
    type=float,
    default=1.0,
    show_default=True,
    callback=_require(lambda value: 0 <= value < math.inf, "{:g} is not 0 (for the most probable token) or more."),
    metavar="T",
    help="Divisor of the logits; 0 takes the most probable token.",
)
@click.option(
    "--top-p",
    type=float,
    default=1.0,
    show_default=True,
    callback=_require(lambda value: 0 < value <= 1, "{:g} is not allowed: give more than 0, at most 1 (all tokens)."),
    metavar="P",
    help="Draw from the fewest tokens that together have this probability.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    default=1234,
    show_default=True,
    metavar="S",
    help="The same seed gives the same text.",
)
@backend_option
@click.option("--recipe", type=LocalPath(), metavar="FILE", help="Recipe of a checkpoint outside of a run directory.")
@set_option
def command(
    *,
    source: Path,
    prompt: str,
    max_new_tokens: int,
    temperature: float,
    top_p: float,
    seed: int,
    backend: str,
    recipe: Path | None,
    overrides: tuple[str, ...],
) -> int:
    """Generate text from RUN, a run directory, or from CHECKPOINT, a folder of checkpoints or one of them.

    It runs in the layout of the recipe, on tensor x pipeline x context ranks, with the training's kernels. The text
    goes to standard output as it comes, everything else to standard error. The model sees the last model.seq_length
    tokens.
    """
    from pretrain.launch.job import GENERATE, ForwardJob  # noqa: PLC0415  --help needs none of these
    from pretrain.launch.placement import make_placement  # noqa: PLC0415
    from pretrain.launch.run_directory import checkpoints_of  # noqa: PLC0415
    from pretrain.recipe import load_recipe  # noqa: PLC0415

    world = current_world()
    file = recipe or _recipe_of(source)
    loaded = load_recipe(file, overrides)
    remark = _checked(loaded, prompt)
    placement = make_placement(file, overrides, backend, nodes=Nodes(), nproc=loaded.least_ranks, world=world)
    if world is None or world.rank == 0:
        click.echo("\n".join(filter(None, (NOTE, remark))), err=True)
    job = ForwardJob(
        recipe=str(file),
        overrides=overrides,
        backend=backend,
        function=GENERATE,
        options={
            "checkpoint": str(checkpoints_of(source)),
            "prompt": prompt,
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "seed": seed,
        },
        reads_data=False,
    )
    return start_ranks(placement, job, world)


def _recipe_of(source: Path) -> Path:
    from pretrain.launch.run_directory import recipe_of  # noqa: PLC0415  as above

    found = recipe_of(source) if source.is_dir() else None
    if found is None:
        what = "there is no recipe.yml beside it" if source.is_dir() else "there is no such folder"
        msg = (
            f"{source}: {what}.\nName a run directory, its checkpoints or one of them; a checkpoint outside of a run "
            "needs --recipe FILE."
        )
        raise CheckpointError(msg)
    return found


def _checked(recipe: Recipe, prompt: str) -> str:
    """Check the length of the prompt; return a remark if the model does not see all of it."""
    from pretrain.data.tokenizers import load_tokenizer  # noqa: PLC0415  as above

    tokens, model = len(load_tokenizer(recipe.tokenizer).encode(prompt)), recipe.model
    if not tokens or tokens > model.max_position_embeddings:
        msg = f"{tokens:,} tokens; give 1 to {model.max_position_embeddings:,} (model.max_position_embeddings)."
        raise click.BadParameter(msg, param_hint="'--prompt'")
    return f"The model sees the last {model.seq_length:,} tokens of {tokens:,}." if tokens > model.seq_length else ""
