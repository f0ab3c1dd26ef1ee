"""Arguments of other programs from a recipe: `--to`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from pretrain.errors import MigrateError
from pretrain.tools.migrate.commands.output import DIFFERS, NOTHING, write

if TYPE_CHECKING:
    from pathlib import Path

_NOT_WITH_TO = {"arguments", "define", "program", "devices", "as_meant", "capture", "yes"}


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
