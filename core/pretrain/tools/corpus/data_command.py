"""`pretrain data`: build, merge and inspect token files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pretrain.cli.options import BuildCommand, LocalPath
from pretrain.cli.stored_path import StoredPath
from pretrain.data.tokenizers.tokenizer import TokenizerFiles
from pretrain.errors import DataError
from pretrain.machine import available_cores
from pretrain.report.console import ByteCount, ProgressBar
from pretrain.report.plain_text import size_text
from pretrain.tokenizer_types import tokenizer_type as type_named

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.tools.corpus.build import BuildProgress, Built
    from pretrain.tools.corpus.inputs import Shard

_FILE = LocalPath(dir_okay=False)
_PREFIX = LocalPath(is_prefix=True)
_INPUTS = StoredPath(is_checkpoint=False)
_INPUT = "Another INPUT, as in Megatron's tool."
_ENCODER = "auto: gigatoken where it supports the tokenizer, with a sample compared with the tokenizers library."
_ON_ERROR = "Malformed lines: stop at the first, or skip and count them."
_TOKENIZER_OPTIONS = (
    click.option("--tokenizer-type", metavar="TYPE", help="gpt2, huggingface or bytes; Megatron's names work too."),
    click.option("--vocab-file", "--vocab", type=_FILE, help="GPT-2's vocab.json, for type gpt2."),
    click.option("--merge-file", type=_FILE, help="GPT-2's merges.txt, for type gpt2."),
    click.option("--tokenizer-file", type=_FILE, help="A tokenizer.json, for type huggingface."),
)
_TOKENIZER_NAMES = ("tokenizer_type", "vocab_file", "merge_file", "tokenizer_file")


def _names_tokenizer(function: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_TOKENIZER_OPTIONS):
        function = option(function)
    return function


def _more(ctx: click.Context, _: click.Parameter, given: tuple[Path, ...]) -> None:
    ctx.meta["inputs"] = given


def _with_more(ctx: click.Context, parameter: click.Parameter, given: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return the inputs of all options; at least one is needed."""
    inputs = given + tuple(ctx.meta["inputs"])
    if not inputs and not ctx.resilient_parsing:
        raise click.MissingParameter(ctx=ctx, param=parameter)
    return inputs


@click.group()
def command() -> None:
    """Build, merge and inspect token files (.bin and .idx, Megatron's format)."""


@command.command(cls=BuildCommand)
@click.argument("inputs", metavar="INPUT...", nargs=-1, type=_INPUTS, callback=_with_more)
@click.option("--input", multiple=True, type=_INPUTS, is_eager=True, expose_value=False, callback=_more, help=_INPUT)
@click.option("--output-prefix", required=True, type=_PREFIX, help="P writes P_<json key>_document.bin and .idx.")
@_names_tokenizer
@click.option("--json-key", "--json-keys", default="text", show_default=True, help="Key that holds the text.")
@click.option("--append-eod", is_flag=True, help="End every document with the end-of-document token.")
@click.option("--workers", type=click.IntRange(min=1), help="Encoding processes.  [default: one per core]")
@click.option("--encoder", type=click.Choice(["auto", "tokenizers"]), default="auto", show_default=True, help=_ENCODER)
@click.option("--on-error", type=click.Choice(["stop", "skip"]), default="stop", show_default=True, help=_ON_ERROR)
@click.option("--clean", is_flag=True, help="Repair broken Unicode with ftfy.")
@click.option("--drop-duplicates", is_flag=True, help="Drop documents whose text is a duplicate.")
@click.option("--min-length", type=click.IntRange(min=0), default=0, help="Drop documents with fewer characters.")
@click.option("--shard", metavar="I/N", help="Build part I of N, from 0: one element of a job array.")
@click.option("--dataset-impl", "--data-impl", type=click.Choice(["mmap"]), help="As in Megatron's tool; no effect.")
@click.option("--force", is_flag=True, help="Replace existing files; discard an interrupted build of other settings.")
def build(*, inputs: tuple[Path, ...], output_prefix: Path, shard: str | None, **options: Any) -> None:
    """Encode text into token files.

    INPUT is a JSONL file (plain, .gz, .xz, .bz2 or .zst), a .parquet or .txt file, a folder of such files or of texts,
    a folder of a Hugging Face dataset, a pattern, or several of them with commas between; or one of these at s3:// or
    gs://, which is copied to this machine first.

    The files are those of Megatron-LM's preprocess_data.py, byte for byte, with any number of workers. The same
    command continues an interrupted build.
    """
    from pretrain.tools.corpus.build import build_tokens  # noqa: PLC0415  numpy is slow to import for --help
    from pretrain.tools.corpus.documents import Cleaning  # noqa: PLC0415
    from pretrain.tools.corpus.inputs import Shard  # noqa: PLC0415
    from pretrain.tools.corpus.unfinished import folder_of  # noqa: PLC0415

    section = _section(**{name: options[name] for name in _TOKENIZER_NAMES})
    part = Shard.parse(shard) if shard else None
    prefix = _prefix(output_prefix, options["json_key"], part)
    begin = time.monotonic()
    try:
        with ProgressBar() as bar:
            built = build_tokens(
                inputs,
                prefix,
                section,
                json_key=options["json_key"],
                append_eod=options["append_eod"],
                skip_faults=options["on_error"] == "skip",
                cleaning=Cleaning(options["clean"], options["min_length"], options["drop_duplicates"]),
                shard=part,
                workers=options["workers"] or available_cores(),
                reference_only=options["encoder"] == "tokenizers",
                force=options["force"],
                progress=_shown_on(bar),
            )
    except KeyboardInterrupt:
        if folder_of(prefix).is_dir():
            click.echo(f"{folder_of(prefix)} keeps the data written so far: repeat the command to continue.", err=True)
        raise
    _print_summary(built, prefix, time.monotonic() - begin)


def _shown_on(bar: ProgressBar) -> Callable[[BuildProgress], None]:
    count: ByteCount | None = None
    begun = time.monotonic()

    def show(progress: BuildProgress) -> None:
        nonlocal count
        if count is None:
            count = ByteCount(bar, progress.total, done=progress.read if progress.continued else 0, begun=begun)
            if progress.continued:
                bar.print(f"continuing an interrupted build at {size_text(progress.read)}")
        count.reach(progress.read, f"{progress.written.documents:,} documents")

    return show


def _prefix(output_prefix: Path, json_key: str, shard: Shard | None) -> Path:
    """Return Megatron's name of the files; characters of a key that a file name cannot hold are replaced."""
    if not output_prefix.name:
        msg = f"--output-prefix is '{output_prefix}'.\nIt must end in a name, as in data/corpus."
        raise DataError(msg)
    key = json_key.replace("/", "_").replace("\0", "_")
    return output_prefix.with_name(f"{output_prefix.name}_{key}_document{shard.suffix if shard else ''}")


def _print_summary(built: Built, prefix: Path, seconds: float) -> None:
    tokens = f"{built.tokens:,} tokens of {built.token_bytes} bytes"
    click.echo(f"{prefix}: {built.documents:,} documents, {tokens}, {seconds:.1f} s")
    counts = built.counts
    if counts.faults:
        click.echo(f"left out: {counts.faults:,} malformed; the first is {counts.first_fault}")
    if counts.short or counts.duplicates:
        click.echo(f"left out: {counts.short:,} short documents, {counts.duplicates:,} duplicates")
    if counts.texts:
        texts = f"{counts.compared:,} of {counts.texts:,} texts"
        click.echo(f"encoded by gigatoken; {texts} were compared, and the tokenizers library gave the same tokens")


@command.command()
@click.argument("prefix", type=_FILE)
@_names_tokenizer
@click.option("--samples", type=click.IntRange(min=0), help="Documents to show.  [default: 1]")
@click.option("--all-ids", is_flag=True, help="Check all token ids (default: a sample of one million).")
@click.option("--repair", is_flag=True, help="Repair an index that does not count the end-of-document tokens.")
def inspect(*, prefix: Path, samples: int | None, all_ids: bool, repair: bool, **tokenizer: Any) -> None:
    """Describe PREFIX.bin and PREFIX.idx and check that they are complete.

    With a tokenizer its ids and the ends of the documents are checked, too, and text is shown.
    """
    if not any(tokenizer.values()) and (samples is not None or all_ids):
        msg = f"{'--all-ids' if all_ids else '--samples'} needs the tokenizer that the data was made with.\n"
        msg += "Give --tokenizer-file, --vocab-file and --merge-file, or --tokenizer-type bytes."
        raise DataError(msg)
    from pretrain.data.tokenizers import load_tokenizer  # noqa: PLC0415
    from pretrain.tools.corpus.inspection import inspect_tokens, repair_lengths  # noqa: PLC0415

    name = _without_suffix(prefix)
    loaded = load_tokenizer(_section(**tokenizer)) if any(tokenizer.values()) else None
    if repair:
        tokens = repair_lengths(name)
        click.echo(f"repaired: {tokens:,} tokens added to the index; the old one is {name}.idx.before-repair")
    for line in inspect_tokens(name, loaded, samples=1 if samples is None else samples, all_ids=all_ids):
        click.echo(line)


@command.command()
@click.argument("prefixes", metavar="PREFIX...", nargs=-1, required=True, type=_FILE)
@click.option("--output-prefix", required=True, type=_PREFIX, help="P writes P.bin and P.idx.")
@click.option("--force", is_flag=True, help="Replace existing files.")
def merge(*, prefixes: tuple[Path, ...], output_prefix: Path, force: bool) -> None:
    """Join token files of one tokenizer into one pair, in the order given."""
    from pretrain.tools.corpus.merging import merge_tokens  # noqa: PLC0415  numpy is slow to import for --help

    _refuse_two_names(prefixes)
    built = merge_tokens([Path(_without_suffix(prefix)) for prefix in prefixes], output_prefix, force=force)
    click.echo(f"{output_prefix}: {built.documents:,} documents, {built.tokens:,} tokens")


def _section(
    *, tokenizer_type: str | None, vocab_file: Path | None, merge_file: Path | None, tokenizer_file: Path | None
) -> TokenizerFiles:
    given = tokenizer_type or ("huggingface" if tokenizer_file else "gpt2" if vocab_file else None)
    if given is None:
        msg = "--tokenizer-type is missing.\nGive gpt2, huggingface or bytes."
        raise DataError(msg)
    try:
        kind = type_named(given)
    except ValueError as error:
        msg = f"--tokenizer-type {error}"
        raise DataError(msg) from error
    if kind == "huggingface" and tokenizer_file is None:
        tokenizer_file, vocab_file = vocab_file, None  # GPT-NeoX passes its tokenizer.json as --vocab-file
    files = {"vocab_file": vocab_file, "merge_file": merge_file, "file": tokenizer_file}
    named = {key: str(path) for key, path in files.items() if path is not None}
    return TokenizerFiles(kind, **named)


def _refuse_two_names(prefixes: tuple[Path, ...]) -> None:
    """Refuse both files of a pair, as the pattern corpus.* gives them; one name given twice is meant."""
    named: dict[Path, Path] = {}
    for prefix in prefixes:
        first = named.setdefault(Path(_without_suffix(prefix)).absolute(), prefix)
        if first != prefix:
            todo = "Give one of them; to have its documents twice, give the same name twice."
            msg = f"{first} and {prefix} belong to the same token file.\n{todo}"
            raise DataError(msg)


def _without_suffix(prefix: Path) -> str:
    """Accept the name of either file, as a shell completes it."""
    return str(prefix.with_suffix("") if prefix.suffix in {".bin", ".idx"} else prefix)
