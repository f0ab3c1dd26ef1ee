"""`pretrain migrate`: a recipe from the scripts and files of other programs, and their arguments from a recipe."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from pretrain.cli.options import LocalPath
from pretrain.cli.words import override_names
from pretrain.errors import MigrateError, did_you_mean
from pretrain.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pretrain.tools.migrate.migration import Migration
    from pretrain.tools.migrate.sources.files import MigrateSource


@click.command("migrate")
@click.argument("sources", metavar="SOURCE...", nargs=-1)
@click.option("--args", "arguments", metavar="TEXT", multiple=True, help="Arguments of pretrain_gpt.py, as a source.")
@click.option("--output", "-o", type=LocalPath(), help="Write here.  [default: standard output]")
@click.option("--define", "-D", metavar="NAME=VALUE", multiple=True, help="A variable of a script; 1=VALUE for its $1.")
@click.option("--from", "program", metavar="PROGRAM", default="", help="The program's version; --from ? lists them.")
@click.option("--devices", metavar="N", type=click.IntRange(min=1), help="Devices of the training, if no source says.")
@click.option(
    "--set",
    "overrides",
    metavar="SECTION.KEY=VALUE",
    multiple=True,
    help="A key of the recipe, over the sources.",
    shell_complete=override_names,
)
@click.option("--accept", metavar="NAME,...", multiple=True, help="Settings to leave out though the model changes.")
@click.option("--as-meant", is_flag=True, help="Take a DeepSpeed file even if the program ignores it.")
@click.option("--strict", is_flag=True, help="Write nothing if a setting is not supported.")
@click.option("--force", is_flag=True, help="Replace an existing output.")
@click.option("--capture", is_flag=True, help="Run a command for real as the source: -- bash train.sh")
@click.option("--yes", is_flag=True, help="Do not ask before --capture runs the command.")
@click.option("--to", "target", type=click.Choice(["megatron"]), help="Write this program's arguments for a recipe.")
@click.pass_context
def command(
    context: click.Context,
    *,
    sources: tuple[str, ...],
    arguments: tuple[str, ...],
    output: Path | None,
    define: tuple[str, ...],
    program: str,
    devices: int | None,
    overrides: tuple[str, ...],
    accept: tuple[str, ...],
    as_meant: bool,
    strict: bool,
    force: bool,
    capture: bool,
    yes: bool,
    target: str | None,
) -> None:
    """Write a recipe from another program's training script, arguments or files.

    SOURCE is a shell script that starts pretrain_gpt.py (Megatron-LM, Megatron-DeepSpeed), a file of its arguments, a
    log with its list of arguments, a DeepSpeed JSON, a YAML of Megatron-LM, or GPT-NeoX's YAML files. Later sources
    win. A script runs in a cell: nothing that it writes is kept, it has no network, and it starts no training.

    Exit code: 0 if every setting was carried over, 3 if one is not supported or not known, 2 if nothing was written
    because a source cannot be read or the model would change (--accept).
    """
    if program == "?":
        from pretrain.tools.migrate.programs import programs  # noqa: PLC0415  kept out of --help

        for known in programs().values():
            click.echo(f"{known.name:40}{known.title}")
        return
    if not sources and not arguments:
        msg = "Name a source: a script, a file, or --args."
        raise click.UsageError(msg, context)
    if output is not None and output.exists() and not force:
        msg = f"{output} exists.\nName another --output, or give --force to replace it."
        raise MigrateError(msg)
    if target is not None:
        _check_options_with_to(context)
        context.exit(_to_megatron(sources, output, overrides, strict=strict))
    from pretrain.tools.migrate.migration import migrate  # noqa: PLC0415  kept out of --help
    from pretrain.tools.migrate.setting import MigrateOptions  # noqa: PLC0415

    _check_capture(sources, define, capture=capture, yes=yes)
    if capture:
        read = _read_captured(sources, arguments, agreed=yes)
    else:
        read = _read_given(sources, arguments, _defined_values(define))
    if all(source.preprocessing and not source.words and not source.settings for source in read):
        context.exit(_show_builds(read, output))
    accepted = frozenset(name.strip().lstrip("-").replace("-", "_") for text in accept for name in text.split(","))
    migration = migrate(read, MigrateOptions(program, devices, as_meant, overrides, accepted))
    written = migration.is_complete or not strict
    if written:
        _write(output, migration.text)
    _show(migration, output, written=written)
    context.exit(0 if migration.is_complete else ExitCode.PARTIAL)


def _defined_values(definitions: tuple[str, ...]) -> dict[str, str]:
    pairs = [definition.partition("=") for definition in definitions]
    for name, equals, _ in pairs:
        if not name or not equals:
            msg = f"--define {name}: give it as NAME=VALUE."
            raise MigrateError(msg)
    return {name: value for name, _, value in pairs}


def _read_given(
    sources: tuple[str, ...], arguments: tuple[str, ...], defined: Mapping[str, str]
) -> list[MigrateSource]:
    from pretrain.tools.migrate.sources.recognition import read_sources  # noqa: PLC0415  kept out of --help
    from pretrain.tools.migrate.sources.script import read_arguments  # noqa: PLC0415

    read = [*read_sources(sources, defined), *(read_arguments(text, defined) for text in arguments)]
    unread = defined.keys() - {name for source in read for name in source.read_names}
    if unread:
        name = min(unread)
        near = did_you_mean(name, (known for source in read for known in source.read_names))
        msg = f"--define {name}: no source reads this variable.{near}\nCorrect its name, or leave it out."
        raise MigrateError(msg)
    return read


def _check_capture(sources: tuple[str, ...], define: tuple[str, ...], *, capture: bool, yes: bool) -> None:
    if yes and not capture:
        msg = "--yes is for --capture alone.\nLeave it out, or give --capture -- bash train.sh."
        raise MigrateError(msg)
    if capture and define:
        msg = "--define does not work with --capture.\nSet the variable instead: env NAME=VALUE pretrain migrate ..."
        raise MigrateError(msg)
    if capture and not sources:
        msg = "--capture needs a command.\nGive it last: pretrain migrate --capture -- bash train.sh"
        raise MigrateError(msg)


def _read_captured(command: tuple[str, ...], arguments: tuple[str, ...], *, agreed: bool) -> list[MigrateSource]:
    from pretrain.tools.migrate.sources.script import read_arguments, read_capture  # noqa: PLC0415

    click.echo(
        f"{shlex.join(command)}\n"
        "This command runs for real, here and now. Stubs replace only the training's python and launchers such as\n"
        "torchrun, deepspeed, srun and ssh. Everything else happens: a script that removes files removes them.",
        err=True,
    )
    try:
        agreed = agreed or click.confirm("Run it?", err=True)
    except click.Abort:  # nobody can answer
        agreed = False
    if not agreed:
        msg = "--capture: the command was not run.\nAnswer y, or give --yes in a script."
        raise MigrateError(msg)
    return [read_capture(command), *(read_arguments(text) for text in arguments)]


_NOTHING = "Nothing was written, because of --strict: a setting is not supported or not known."


def _write(output: Path | None, text: str) -> None:
    from pretrain.atomic_files import replacing  # noqa: PLC0415  kept out of --help

    if output is None:
        click.echo(text, nl=False)
        return
    with replacing(output, error=MigrateError, durable=False) as stream:
        stream.write(text.encode())


def _show(migration: Migration, output: Path | None, *, written: bool) -> None:
    from pretrain.tools.migrate.report import report, wrapped  # noqa: PLC0415  kept out of --help

    click.echo(f"Taken for {migration.taken_for}.", err=True)
    click.echo(report(migration.outcomes), err=True)
    for notice in migration.notices:
        click.echo("\n".join(wrapped(f"Note: {notice}")), err=True)
    if not written:
        click.echo(_NOTHING, err=True)
        return
    for line in migration.commands(str(output or "recipe.yml")):
        click.echo(line, err=True)


def _show_builds(sources: list[MigrateSource], output: Path | None) -> int:
    from pretrain.tools.migrate.migration import build_command  # noqa: PLC0415  kept out of --help
    from pretrain.tools.migrate.report import report  # noqa: PLC0415

    if output is not None:
        msg = f"{sources[0].name} only builds token files, so there is no recipe to write.\nLeave --output out."
        raise MigrateError(msg)
    builds = [build_command(arguments) for source in sources for arguments in source.preprocessing]
    outcomes = [outcome for _, found in builds for outcome in found]
    click.echo(report(outcomes), err=True)
    for build, _ in builds:
        click.echo(build)
    return ExitCode.PARTIAL if any(outcome.fate in {"not supported", "not known"} for outcome in outcomes) else 0


_NOT_WITH_TO = {"arguments", "define", "program", "devices", "accept", "as_meant", "capture", "yes"}


def _check_options_with_to(context: click.Context) -> None:
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in _NOT_WITH_TO
        and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]
    if given:
        msg = f"Leave out {', '.join(given)}: --to takes --set, --output, --force and --strict alone."
        raise MigrateError(msg)


def _to_megatron(sources: tuple[str, ...], output: Path | None, overrides: tuple[str, ...], *, strict: bool) -> int:
    from pretrain.recipe import load_recipe  # noqa: PLC0415
    from pretrain.tools.migrate.to_megatron.arguments import arguments_of  # noqa: PLC0415  kept out of --help

    if len(sources) != 1:
        msg = f"--to megatron takes one recipe, not {len(sources)} sources.\nRun it once for each."
        raise MigrateError(msg)
    arguments = arguments_of(load_recipe(sources[0], overrides))
    for line in arguments.left_out:
        click.echo(f"No flag: {line}", err=True)
    if strict and arguments.left_out:
        click.echo(_NOTHING, err=True)
    else:
        _write(output, arguments.text)
    return ExitCode.PARTIAL if arguments.left_out else 0
