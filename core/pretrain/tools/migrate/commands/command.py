"""`pretrain migrate`: a recipe from the scripts and files of other programs, and their arguments from a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pretrain.cli.options import LocalPath
from pretrain.tools.migrate.commands.given_sources import (
    defined_values,
    only_preprocesses,
    read_captured,
    read_given,
    require_command,
)
from pretrain.tools.migrate.commands.output import DIFFERS, require_free, show, write
from pretrain.tools.migrate.commands.token_files import show_builds
from pretrain.tools.migrate.commands.way_back import require_alone, to_megatron

if TYPE_CHECKING:
    from pathlib import Path


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

    Exit code: 0 if all was carried over, 3 if something is not supported, 2 if nothing could be read.
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
    from pretrain.tools.migrate.wishes import Wishes  # noqa: PLC0415

    require_command(context)
    if capture:
        read = read_captured(sources, arguments, agreed=yes)
    else:
        read = read_given(sources, arguments, defined_values(define))
    if only_preprocesses(read):
        context.exit(show_builds(read, output))
    migration = migrate(read, Wishes(program, devices, as_meant, overrides))
    written = migration.is_complete or not strict
    if written:
        write(output, migration.text)
    show(migration, output if written else None, written=written)
    context.exit(0 if migration.is_complete else DIFFERS)


def _list_programs() -> None:
    from pretrain.tools.migrate.programs.known import programs  # noqa: PLC0415  kept out of --help

    for known in programs().values():
        click.echo(f"{known.name:40}{known.title}")
