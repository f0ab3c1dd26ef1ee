"""`pretrain checkpoint`: look into checkpoints of this program and of others, verify and convert them."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pretrain.cli.options import LocalPath
from pretrain.cli.stored_path import StoredPath
from pretrain.cli.words import override_names
from pretrain.errors import RecipeError, did_you_mean
from pretrain.exit_codes import ExitCode
from pretrain.report.console import ByteCount, ProgressBar
from pretrain.report.plain_text import size_text
from pretrain.stores.local_copies import shown_place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pretrain.data.tokenizers import Tokenizer
    from pretrain.recipe.sections.model import ModelSection
    from pretrain.tools.convert.conversion import Difference
    from pretrain.tools.convert.model_weights import CheckpointSummary, ModelWeights

_PATH = LocalPath()
_CHECKPOINT = StoredPath(is_checkpoint=True)
DIFFERENT = ExitCode.FAILURE
_SHOWN = 20
_SECTION = "model."
FORMATS = ("pretrain", "megatron", "torch_dist", "deepspeed", "neox", "huggingface")
_COUNT = click.IntRange(min=1)
_TENSOR = "Tensor-parallel ranks; not for pretrain and huggingface."
_TOKENIZER = (
    "tokenizer.json; or, given twice, vocab.json and merges.txt. Its size tells which rows of the vocabulary are "
    "padding.  [default: the source's; for huggingface, from a run: its recipe's]"
)
_LEFT_OUT = {"hidden_dropout", "attention_dropout"}  # of the training, not of the weights
_SET = "A model setting that the files do not contain, such as model.num_attention_heads=16."
_model_settings = click.option(
    "--set", "settings", multiple=True, metavar="model.KEY=VALUE", help=_SET, shell_complete=override_names
)


@click.group()
def command() -> None:
    """Look into checkpoints, verify and convert them.

    They may be this program's, Megatron-LM's, DeepSpeed's, GPT-NeoX's or Hugging Face's.
    """


def _parsed(settings: Sequence[str]) -> dict[str, Any]:
    import yaml  # noqa: PLC0415  kept out of --help

    from pretrain.recipe.sections.model import ModelSection  # noqa: PLC0415  it imports pydantic

    found = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        key = path.removeprefix(_SECTION)
        if not equals or not path.startswith(_SECTION) or key not in ModelSection.model_fields:
            msg = f"--set {setting[:100]}: expected a key of section model and a value."
            msg += f"{did_you_mean(key, ModelSection.model_fields)}\nWrite --set model.KEY=VALUE."
            raise RecipeError(msg)
        try:
            found[key] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            msg = f"--set {setting[:100]}: the value is not YAML.\nQuote it."
            raise RecipeError(msg) from error
    return found


@command.command("inspect")
@click.argument("path", type=_CHECKPOINT)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def inspect_command(*, path: Path, as_json: bool) -> None:
    """Print the format of a checkpoint, its model, layout, dtype and size; nothing in it is executed.

    PATH is the folder of a run, of its checkpoints (the latest is taken), or of one checkpoint.
    """
    import orjson  # noqa: PLC0415  kept out of --help

    from pretrain.checkpoint.checksums import are_foreign, are_there  # noqa: PLC0415
    from pretrain.tools.convert.registry import summary_of  # noqa: PLC0415  it imports torch

    summary = summary_of(path)
    none = "checksums.txt is another program's" if are_foreign(summary.path) else "no checksums.txt"
    checksums = _verified(summary.path) if are_there(summary.path) else none
    if as_json:
        shown = asdict(summary) | {"path": shown_place(summary.path), "checksums": checksums}
        click.echo(orjson.dumps(shown, option=orjson.OPT_INDENT_2))
    else:
        click.echo("\n".join(_lines(summary, checksums)))


def _verified(folder: Path) -> str:
    """Say how much of a folder was compared with its checksums when it was opened."""
    from pretrain.checkpoint.checksums import SMALL_FILES, bytes_of  # noqa: PLC0415  kept out of --help

    read, there = bytes_of(folder, SMALL_FILES)
    if read == there:
        return "match"
    rest = "of other files only the sizes were compared: see pretrain checkpoint verify"
    return f"match in the {size_text(read)} that were read; {rest}"


def _lines(summary: CheckpointSummary, checksums: str) -> list[str]:
    from pretrain.recipe.section import as_text  # noqa: PLC0415  slow, and not needed for --help

    version = f" ({summary.version})" if summary.version else ""
    parts = [f"{name.replace('_', ' ')} {size}" for name, size in asdict(summary.parts).items() if size > 1]
    rows = {
        "path": shown_place(summary.path),
        "format": f"{summary.format}{version}",
        "iteration": "not in the files" if summary.iteration is None else f"{summary.iteration:,}",
        "parameters": "not known" if summary.parameters is None else f"{summary.parameters:,}",
        "dtype": ", ".join(summary.dtypes),
        "layout": " x ".join(parts) or "one part",
        "contents": ", ".join(summary.contents),
        "files": f"{summary.files:,}, {size_text(summary.size)}",
        "checksums": checksums,
    }
    lines = [f"{f'{name}:':<12}{value}" for name, value in rows.items()]
    return [*lines, "model:", *(f"  {name}: {as_text(value)}" for name, value in summary.model.items())]


@command.command("verify")
@click.argument("path", type=_CHECKPOINT)
@click.option("--against", type=_CHECKPOINT, metavar="OTHER", help="Compare all weights with this checkpoint's.")
@_model_settings
def verify_command(*, path: Path, against: Path | None, settings: tuple[str, ...]) -> int:
    """Read all weights of the checkpoint at PATH: complete, of the right shapes, finite.

    Files are compared with checksums.txt, or with the checksums that torch.save writes into its own; safetensors has
    none.

    With --against weights and settings are compared with those of another checkpoint, of any format; exit code 1 if
    any differ.
    """
    from pretrain.checkpoint.checksums import Share  # noqa: PLC0415
    from pretrain.tools.convert import conversion  # noqa: PLC0415  it imports torch
    from pretrain.tools.convert.registry import read_weights  # noqa: PLC0415

    given = _parsed(settings)
    with ProgressBar() as bar:
        weights = read_weights(path, given, Share(begin=partial(ByteCount, bar)))
        broken = conversion.not_finite(weights, ByteCount(bar, _size(weights), "read"))
    unverified = conversion.files_without_checksums(weights)
    if broken:
        click.echo(
            f"{shown_place(weights.path)} has numbers that are not finite: {', '.join(broken[:_SHOWN])}", err=True
        )
        return DIFFERENT
    found = f"{len(weights.tensors):,} weights, {size_text(_size(weights))}, complete and finite"
    checked = "checksums match"
    if unverified:
        files = "1 file has" if len(unverified) == 1 else f"{len(unverified)} files have"
        checked = f"{files} no checksums ({unverified[0].name}): a changed number there is not detected"
    click.echo(f"{shown_place(weights.path)} ({weights.format}): {found}; {checked}")
    _name_foreign(weights)
    if against is None:
        return 0
    with ProgressBar() as bar:
        other = read_weights(against, given, Share(begin=partial(ByteCount, bar)))
        compared = conversion.differences(weights, other, ByteCount(bar, _size(weights), "compared"))
    _name_foreign(other)
    differing = conversion.settings_that_differ(weights, other)
    for name, (ours, theirs) in differing.items():
        click.echo(f"different model: {name} is {ours}, and {theirs} in the other")
    return _show([each for each in compared if each.largest != 0.0], weights, other) or (DIFFERENT if differing else 0)


def _name_foreign(weights: ModelWeights) -> None:
    from pretrain.checkpoint.checksums import FILE, are_foreign  # noqa: PLC0415  kept out of --help

    if are_foreign(weights.path):
        click.echo(f"{weights.path / FILE} is another program's and was not used")


def _size(weights: ModelWeights) -> int:
    return sum(tensor.nbytes for tensor in weights.tensors.values())


def _show(different: list[Difference], weights: ModelWeights, other: ModelWeights) -> int:
    if not different:
        click.echo(f"equal to {shown_place(other.path)} ({other.format}) in every number")
        return 0
    counts = f"{len(different)} of {len(weights.tensors)} weights"
    click.echo(f"different from {shown_place(other.path)} ({other.format}) in {counts}:")
    for each in sorted(different, key=lambda each: -each.largest)[:_SHOWN]:
        click.echo(f"  {each.name}: {each.shape or f'by at most {each.largest:.3g}'}")
    return DIFFERENT


@command.command("recipe")
@click.argument("path", type=_CHECKPOINT)
@_model_settings
def recipe_command(*, path: Path, settings: tuple[str, ...]) -> None:
    """Print the section `model` of a recipe that continues from the checkpoint at PATH."""
    import yaml  # noqa: PLC0415  kept out of --help

    from pretrain.checkpoint.checksums import SMALL_FILES  # noqa: PLC0415
    from pretrain.tools.convert.registry import read_weights  # noqa: PLC0415  it imports torch

    weights = read_weights(path, _parsed(settings), SMALL_FILES)  # no weight is read
    click.echo(f"# {shown_place(weights.path)} ({weights.format}); {weights.rows:,} rows of vocabulary")
    click.echo(yaml.safe_dump({"model": recipe_section(weights.model)}, sort_keys=False), nl=False)


def recipe_section(model: ModelSection) -> Mapping[str, Any]:
    """Return the settings that differ from a recipe's defaults, in the order of the section's keys."""
    from pretrain.recipe.sections.model import ModelSection  # noqa: PLC0415  it imports pydantic

    needed = {name: getattr(model, name) for name, field in ModelSection.model_fields.items() if field.is_required()}
    plain = ModelSection.model_validate(needed | {"activation": model.activation})
    given = model.model_dump(exclude=_LEFT_OUT)
    default = plain.model_dump() | {"activation": ModelSection.model_fields["activation"].default}
    return {name: value for name, value in given.items() if name in needed or value != default[name]}


@command.command("convert")
@click.argument("source", type=_CHECKPOINT)
@click.argument("target", type=_PATH)
@click.option("--to", "to", type=click.Choice(FORMATS), required=True, help="Format of the target.")
@click.option("--dtype", type=click.Choice(("fp32", "bf16", "fp16")), help="For all weights.  [default: the source's]")
@click.option("--tensor", type=_COUNT, default=1, metavar="N", help=_TENSOR)
@click.option("--pipeline", type=_COUNT, default=1, metavar="N", help="Pipeline stages; only for megatron.")
@click.option("--tokenizer", "tokenizer_files", type=_PATH, multiple=True, metavar="FILE", help=_TOKENIZER)
@_model_settings
@click.option("--force", is_flag=True, help="Replace a target that exists.")
def convert_command(
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

    Weights are written as they are read, so the model need not fit into memory. The target is named TARGET.unfinished
    until it is complete; repeat the command to continue after an interruption. The optimizer and the states of random
    generators are not converted.
    """
    from pretrain.tools.convert.conversion import ConvertOptions, convert  # noqa: PLC0415  it imports torch
    from pretrain.tools.convert.model_weights import FileLayout  # noqa: PLC0415

    is_of_run = to == "huggingface" and not tokenizer_files
    if is_of_run:
        tokenizer_files = _tokenizer_of_run(source)
    tokenizer = _loaded(tokenizer_files) if tokenizer_files else None
    options = ConvertOptions(
        format=to,
        dtype=dtype,
        layout=FileLayout(tensor=tensor, pipeline=pipeline),
        tokenizer=tokenizer_files,
        loaded=tokenizer,
        is_of_run=is_of_run,
        given=_parsed(settings),
    )
    with ProgressBar() as bar:
        weights = convert(source, target, options, force=force, begin=partial(ByteCount, bar))
    click.echo(f"{target}: the weights of {shown_place(weights.path)} ({weights.format}) for {to}")
    if to == "huggingface" and (files := tokenizer_files or weights.tokenizer):
        click.echo(f"tokenizer: {', '.join(map(str, files))}")
        if tokenizer and weights.fingerprint not in (None, tokenizer.fingerprint):
            click.echo("it is not the tokenizer of the training: do both give the same ids?", err=True)
    elif to == "huggingface":
        click.echo("no tokenizer is written: pass --tokenizer FILE if you have the model's")


def _tokenizer_of_run(source: Path) -> tuple[Path, ...]:
    from pretrain.checkpoint.sharded_format import COMMON  # noqa: PLC0415  it imports torch
    from pretrain.launch.run_directory import recipe_of  # noqa: PLC0415
    from pretrain.recipe import load_recipe  # noqa: PLC0415
    from pretrain.tools.convert.registry import one_checkpoint  # noqa: PLC0415

    recipe = recipe_of(source)
    if recipe is None or not (one_checkpoint(source) / COMMON).is_file():
        return ()
    try:
        section = load_recipe(recipe).tokenizer
    except RecipeError as error:  # of another version: the weights are what is asked for
        click.echo(f"the tokenizer of {recipe} is not used: {error}", err=True)
        return ()
    if section.type == "bytes":
        click.echo(f"the tokenizer of {recipe} is of type bytes, which has no file for transformers", err=True)
    files = tuple(map(Path, section.files))
    if missing := [file for file in files if not file.is_file()]:
        click.echo(f"the tokenizer of {recipe} is not used: {missing[0]} does not exist", err=True)
    return () if missing else files


def _loaded(files: tuple[Path, ...]) -> Tokenizer:
    from pretrain.data.tokenizers.load import load_tokenizer  # noqa: PLC0415
    from pretrain.recipe.sections.data import TokenizerSection  # noqa: PLC0415

    if len(files) == 1:
        section = {"type": "huggingface", "file": str(files[0])}
    elif len(files) == 2:
        vocabulary, merges = sorted(files, key=lambda file: file.suffix != ".json")
        section = {"type": "gpt2", "vocab_file": str(vocabulary), "merge_file": str(merges)}
    else:
        msg = f"--tokenizer is given {len(files)} times. Give a tokenizer.json, or a vocab.json and a merges.txt."
        raise click.UsageError(msg)
    return load_tokenizer(TokenizerSection.model_validate(section))
