"""`pretrain migrate`: a recipe from the scripts and files of other programs, and their arguments from a recipe."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from pretrain.cli.options import LocalPath
from pretrain.errors import MigrateError, did_you_mean
from pretrain.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pretrain.tools.migrate.migration import Migration
    from pretrain.tools.migrate.sources.files import MigrateSource


@click.command("migrate")
@click.argument("sources", metavar="SOURCE...", nargs=-1)
@click.option("--args", "arguments", metavar="TEXT", multiple=True, help="Arguments of pretrain_gpt.py, as a source.")
@click.option("--output", "-o", type=LocalPath(), help="Write here.  [default: standard output]")
@click.option("--define", "-D", metavar="NAME=VALUE", multiple=True, help="A variable of a script; 1=VALUE for its $1.")
@click.option("--from", "program", metavar="PROGRAM", default="", help="The program's version; --from ? lists them.")
@click.option("--devices", metavar="N", type=click.IntRange(min=1), help="Devices of the training, if none says it.")
@click.option(
    "--set", "overrides", metavar="SECTION.KEY=VALUE", multiple=True, help="A key that the source leaves out."
)
@click.option("--accept", metavar="NAME,...", multiple=True, help="Settings that make another model, to do without.")
@click.option("--as-meant", is_flag=True, help="Take a DeepSpeed file also where the program itself would not read it.")
@click.option("--strict", is_flag=True, help="Write nothing if something is not supported.")
@click.option("--force", is_flag=True, help="Replace an existing output.")
@click.option("--capture", is_flag=True, help="SOURCE... is a command, which is run for real: -- bash train.sh")
@click.option("--yes", is_flag=True, help="With --capture: do not ask.")
@click.option("--to", "target", type=click.Choice(["megatron"]), help="The other way: SOURCE is a recipe.")
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
    """Write a recipe from the script, arguments or files with which another program trains.

    SOURCE is a shell script that starts pretrain_gpt.py (Megatron-LM, Megatron-DeepSpeed), a file of its arguments, a
    log with its list of arguments, a DeepSpeed JSON, a YAML of Megatron-LM, or GPT-NeoX's YAML files. Later sources
    win. A script is run, in a cell: it can write nothing, has no network, and starts no training.

    Exit code: 0 if all was carried over, 3 if something is not supported or not known, 2 if nothing could be read or
    the model would compute something else (--accept).
    """
    if program == "?":
        _list_programs()
        return
    if not sources and not arguments:
        msg = "Name a source: a script, a file, or --args."
        raise click.UsageError(msg, context)
    require_free(output, replaced=force)
    if target is not None:
        require_alone(context)
        context.exit(to_megatron(sources, output, overrides, strict=strict))
    from pretrain.tools.migrate.migration import migrate  # noqa: PLC0415  kept out of --help
    from pretrain.tools.migrate.setting import MigrateOptions  # noqa: PLC0415

    require_command(context)
    if capture:
        read = read_captured(sources, arguments, agreed=yes)
    else:
        read = read_given(sources, arguments, defined_values(define))
    if only_preprocesses(read):
        context.exit(show_builds(read, output))
    accepted = frozenset(name.strip().lstrip("-").replace("-", "_") for text in accept for name in text.split(","))
    migration = migrate(read, MigrateOptions(program, devices, as_meant, overrides, accepted))
    written = migration.is_complete or not strict
    if written:
        write(output, migration.text)
    show(migration, output if written else None, written=written)
    context.exit(0 if migration.is_complete else DIFFERS)


def _list_programs() -> None:
    from pretrain.tools.migrate.programs import programs  # noqa: PLC0415  kept out of --help

    for known in programs().values():
        click.echo(f"{known.name:40}{known.title}")


_RUNS = (
    "This is run for real, here and now: only python for a training, and launchers such as torchrun, deepspeed, srun\n"
    "and ssh, are replaced by stubs. Whatever else it does, such as removing files, happens."
)


def defined_values(definitions: tuple[str, ...]) -> dict[str, str]:
    """Return the values of --define by name."""
    pairs = [definition.partition("=") for definition in definitions]
    for name, equals, _ in pairs:
        if not name or not equals:
            msg = f"--define {name}: a definition is NAME=VALUE."
            raise MigrateError(msg)
    return {name: value for name, _, value in pairs}


def read_given(sources: tuple[str, ...], arguments: Iterable[str], defined: Mapping[str, str]) -> list[MigrateSource]:
    """Return all sources; those of --args come last."""
    from pretrain.tools.migrate.sources.recognition import read_sources  # noqa: PLC0415  kept out of --help
    from pretrain.tools.migrate.sources.script import read_arguments  # noqa: PLC0415

    read = [*read_sources(sources, defined), *(read_arguments(text, defined) for text in arguments)]
    unread = defined.keys() - {name for source in read for name in source.read_names}
    if unread:
        name = min(unread)
        near = did_you_mean(name, (known for source in read for known in source.read_names))
        msg = f"--define {name}: no source has this variable.{near}\nCorrect its name, or leave it out."
        raise MigrateError(msg)
    return read


def only_preprocesses(sources: list[MigrateSource]) -> bool:
    """Return whether sources build token files and train nothing."""
    return all(source.preprocessing and not source.words and not source.settings for source in sources)


def require_command(context: click.Context) -> None:
    """Check that --capture has a command, and that nothing is given which has no meaning with it, or without it."""
    given = context.params
    if given["yes"] and not given["capture"]:
        msg = "--yes belongs to --capture.\nLeave it out, or give --capture -- bash train.sh."
        raise MigrateError(msg)
    if given["capture"] and given["define"]:
        msg = "--define: with --capture the command has its own environment.\nGive it: env NAME=VALUE pretrain migrate"
        raise MigrateError(msg)
    if given["capture"] and not given["sources"]:
        msg = "--capture: there is no command.\nGive it last: pretrain migrate --capture -- bash train.sh"
        raise MigrateError(msg)


def read_captured(command: tuple[str, ...], arguments: tuple[str, ...], *, agreed: bool) -> list[MigrateSource]:
    """Return what a command starts that is run for real, after asking; texts of --args come last."""
    from pretrain.tools.migrate.sources.script import read_arguments, read_capture  # noqa: PLC0415

    click.echo(f"{shlex.join(command)}\n{_RUNS}", err=True)
    if not agreed and not _agrees():
        msg = "--capture: nothing is run.\nAnswer y, or give --yes in a script."
        raise MigrateError(msg)
    return [read_capture(command), *(read_arguments(text) for text in arguments)]


def _agrees() -> bool:
    try:
        return click.confirm("Run it?", err=True)
    except click.Abort:  # there is nobody to answer
        return False


NOTHING = "Nothing is written: --strict, and something is not supported or not known."

DIFFERS = ExitCode.PARTIAL
"""Exit code of a migration after which something is not supported."""


def require_free(output: Path | None, *, replaced: bool) -> None:
    """Check that a file is not replaced by mistake."""
    if output is not None and output.exists() and not replaced:
        msg = f"{output} exists.\nName another --output, or give --force to replace it."
        raise MigrateError(msg)


def write(output: Path | None, text: str) -> None:
    """Write a text into a file, or to standard output without one."""
    from pretrain.atomic_files import replacing  # noqa: PLC0415  kept out of --help

    if output is None:
        click.echo(text, nl=False)
        return
    with replacing(output, error=MigrateError, durable=False) as stream:
        stream.write(text.encode())


def show(migration: Migration, output: Path | None, *, written: bool) -> None:
    """Print the report beside the recipe, on standard error."""
    from pretrain.tools.migrate.report import report, wrapped  # noqa: PLC0415  kept out of --help

    click.echo(f"Taken for {migration.taken_for}.", err=True)
    click.echo(report(migration.outcomes), err=True)
    for notice in migration.notices:
        click.echo("\n".join(wrapped(f"Note: {notice}")), err=True)
    if not written:
        click.echo(NOTHING, err=True)
        return
    for line in migration.commands(str(output or "recipe.yml")):
        click.echo(line, err=True)


def show_builds(sources: list[MigrateSource], output: Path | None) -> int:
    """Print the commands that build token files as preprocessing scripts do, and return the exit code."""
    from pretrain.tools.migrate.migration import build_command  # noqa: PLC0415  kept out of --help
    from pretrain.tools.migrate.report import report  # noqa: PLC0415

    if output is not None:
        msg = f"{sources[0].name} only builds token files: there is no recipe to write.\nLeave --output out."
        raise MigrateError(msg)
    builds = [build_command(arguments) for source in sources for arguments in source.preprocessing]
    outcomes = [outcome for _, found in builds for outcome in found]
    click.echo(report(outcomes), err=True)
    for build, _ in builds:
        click.echo(build)
    return DIFFERS if any(outcome.fate in {"not supported", "not known"} for outcome in outcomes) else 0


_NOT_WITH_TO = {"arguments", "define", "program", "devices", "accept", "as_meant", "capture", "yes"}


def require_alone(context: click.Context) -> None:
    """Refuse options that have no meaning with --to."""
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in _NOT_WITH_TO
        and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]
    if given:
        msg = f"{', '.join(given)}: --to takes a recipe, --set, --output, --force and --strict.\nLeave out the others."
        raise MigrateError(msg)


def to_megatron(sources: tuple[str, ...], output: Path | None, overrides: tuple[str, ...], *, strict: bool) -> int:
    """Write the arguments of Megatron-LM for a recipe, and return the exit code."""
    from pretrain.recipe import load_recipe  # noqa: PLC0415
    from pretrain.tools.migrate.to_megatron.arguments import arguments_of  # noqa: PLC0415  kept out of --help

    if len(sources) != 1:
        msg = f"--to megatron takes one recipe, not {len(sources)} sources.\nCall it for each."
        raise MigrateError(msg)
    arguments = arguments_of(load_recipe(sources[0], overrides))
    for line in arguments.left_out:
        click.echo(f"No flag: {line}", err=True)
    if strict and arguments.left_out:
        click.echo(NOTHING, err=True)
    else:
        write(output, arguments.text)
    return DIFFERS if arguments.left_out else 0
