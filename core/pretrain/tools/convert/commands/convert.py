"""`pretrain checkpoint convert`: a checkpoint in another format."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pretrain.cli.local_path import LocalPath
from pretrain.report.progress_bar import ByteCount, ProgressBar
from pretrain.tools.convert.commands.model_settings import model_settings, parsed

if TYPE_CHECKING:
    from pretrain.tools.convert.exchange.convert import Tokenizer

FORMATS = ("pretrain", "megatron", "torch_dist", "deepspeed", "neox", "huggingface")
_PATH = LocalPath()


@click.command("convert")
@click.argument("source", type=_PATH)
@click.argument("target", type=_PATH)
@click.option("--to", "to", type=click.Choice(FORMATS), required=True, help="Format of the target.")
@click.option("--dtype", type=click.Choice(("fp32", "bf16", "fp16")), help="Of all weights.  [default: the source's]")
@click.option(
    "--tensor",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Tensor-parallel ranks: all but pretrain, huggingface.",
)
@click.option("--pipeline", type=click.IntRange(min=1), default=1, metavar="N", help="Pipeline stages: megatron.")
@click.option(
    "--tokenizer",
    "tokenizer_files",
    type=_PATH,
    multiple=True,
    metavar="FILE",
    help="tokenizer.json; or twice: vocab.json and merges.txt. Its size tells what is padding of the vocabulary. "
    "[default: the source's; huggingface: of a run, its recipe's]",
)
@model_settings
@click.option("--force", is_flag=True, help="Replace a target that exists.")
def command(
    *,
    source: Path,
    target: Path,
    to: str,
    dtype: str | None,
    tensor: int,
    pipeline: int,
    tokenizer_files: tuple[Path, ...],
    settings: tuple[str, ...],
    force: bool,
) -> None:
    """Write the weights of the checkpoint SOURCE, of any format, into the new folder TARGET in another one.

    Weights are written as they are read, so a model needs not fit into memory. Interrupted, the same command goes on;
    until it is complete the target is called TARGET.unfinished. Optimizer and generators are not converted.
    """
    from pretrain.tools.convert.conversion.planned_files import TargetLayout  # noqa: PLC0415
    from pretrain.tools.convert.exchange.convert import Wish, convert  # noqa: PLC0415  it imports torch

    if to == "huggingface" and not tokenizer_files:
        tokenizer_files = _of_run(source)
    wish = Wish(
        format=to,
        dtype=dtype,
        layout=TargetLayout(tensor=tensor, pipeline=pipeline),
        tokenizer=_tokenizer(tokenizer_files),
        given=parsed(settings),
    )
    with ProgressBar() as bar:
        weights = convert(source, target, wish, force=force, begin=partial(ByteCount, bar))
    click.echo(f"{target}: the weights of {weights.path} ({weights.format}) for {to}")
    if to == "huggingface" and (files := tokenizer_files or weights.tokenizer):
        click.echo(f"tokenizer: {', '.join(map(str, files))}")
    elif to == "huggingface":
        click.echo("no tokenizer is written: pass --tokenizer FILE, if the model has files of one")


def _of_run(source: Path) -> tuple[Path, ...]:
    """Return the files of the tokenizer that the recipe of a run of ours names, if they are there."""
    from pretrain.checkpoint.common_state import COMMON  # noqa: PLC0415  it imports torch
    from pretrain.errors import RecipeError  # noqa: PLC0415
    from pretrain.launch.run_directory import recipe_of  # noqa: PLC0415
    from pretrain.recipe import load_recipe  # noqa: PLC0415
    from pretrain.tools.convert.formats.location import one_checkpoint  # noqa: PLC0415

    recipe = recipe_of(source)
    if recipe is None or not (one_checkpoint(source) / COMMON).is_file():
        return ()
    try:
        section = load_recipe(recipe).tokenizer
    except RecipeError as error:  # of another version: the weights are what is asked for
        click.echo(f"no tokenizer is taken from {recipe}: {error}", err=True)
        return ()
    files = tuple(Path(file) for file in (section.file, section.vocab_file, section.merge_file) if file is not None)
    if missing := [file for file in files if not file.is_file()]:
        click.echo(f"{missing[0]}, the tokenizer that {recipe} names, is not there", err=True)
    return () if missing else files


def _tokenizer(files: tuple[Path, ...]) -> Tokenizer | None:
    if not files:
        return None
    from pretrain.data.tokenizers.load import load_tokenizer  # noqa: PLC0415
    from pretrain.recipe.sections.tokenizer import TokenizerSection  # noqa: PLC0415
    from pretrain.tools.convert.exchange.convert import Tokenizer  # noqa: PLC0415

    if len(files) == 1:
        section = TokenizerSection.model_validate({"type": "huggingface", "file": str(files[0])})
    elif len(files) == 2:
        vocabulary, merges = sorted(files, key=lambda file: file.suffix != ".json")
        section = TokenizerSection.model_validate(
            {"type": "gpt2", "vocab_file": str(vocabulary), "merge_file": str(merges)}
        )
    else:
        msg = f"--tokenizer was given {len(files)} times. Name a tokenizer.json, or a vocab.json and a merges.txt."
        raise click.UsageError(msg)
    return Tokenizer(files=files, vocab_size=load_tokenizer(section).vocab_size)
