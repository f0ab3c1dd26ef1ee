"""Every command with its arguments and options is frozen in surface.txt: a change is made there on purpose.

To accept the present state: python tests/cli/test_surface.py
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pretrain.cli.command_line import commands

if TYPE_CHECKING:
    from collections.abc import Iterator

FROZEN = Path(__file__).with_name("surface.txt")


def describe(command: click.Command, path: str) -> Iterator[str]:
    """Yield one line for each command: its name, arguments and options."""
    words = [path]
    for parameter in command.params:
        many = "..." if parameter.nargs == -1 or parameter.multiple else ""
        if isinstance(parameter, click.Argument):
            words.append(f"{(parameter.name or '').upper()}{many}")
        else:
            words.append(f"[{'|'.join([*parameter.opts, *parameter.secondary_opts])}{many}]")
    yield " ".join(words)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in sorted(command.list_commands(context)):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from describe(inner, f"{path} {name}")


def test_commands_and_options_are_frozen():
    assert "\n".join(describe(commands, "pretrain")) + "\n" == FROZEN.read_text(encoding="utf-8")


def test_every_command_and_option_has_help():
    pending: list[click.Command] = [commands]
    while pending:
        command = pending.pop()
        assert command.help, command.name
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, (command.name, parameter.name)
        if isinstance(command, click.Group):
            context = click.Context(command)
            found = [command.get_command(context, name) for name in command.list_commands(context)]
            pending += [inner for inner in found if inner is not None]


if __name__ == "__main__":
    FROZEN.write_text("\n".join(describe(commands, "pretrain")) + "\n", encoding="utf-8")
