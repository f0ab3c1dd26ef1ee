"""The commands of `pretrain`, each imported only when it is called."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pretrain.errors import did_you_mean

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

DEFAULT = "run"

COMPLETION_VARIABLE = "_PRETRAIN_COMPLETE"
"""Environment variable with which a shell asks for words; click reads it."""

COMMANDS = {
    "run": "Train a recipe (the default command).",
    "data": "Build, merge and inspect token files.",
    "tokenizer": "Train a tokenizer.",
    "rendezvous": "Serve the rendezvous of several nodes, so that none of them is needed for the others to go on.",
    "backends": "List every backend: version, provider, and whether it is available or why not.",
    "evaluate": "Compute loss and perplexity of a checkpoint.",
    "generate": "Generate text from a checkpoint.",
    "explain": "Show which kernel each operation gets and why, or where each value comes from.",
    "plan": "Predict memory and time of a training before its devices are rented.",
    "doctor": "Check machines, devices, kernels and links before a training.",
    "align": "Find the first layer and kernel where two trainings of a recipe differ.",
    "conformance": "Run the conformance kit against a backend.",
    "report": "Show runs on one HTML page.",
    "migrate": "Write a recipe from the script or files of another program.",
    "checkpoint": "Inspect, verify and convert checkpoints.",
    "completion": "Print the script with which a shell completes pretrain's words.",
}
"""Name and one line of help; the command is the `command` of module `pretrain.cli.<name>`, or of a tool's."""

_OF_TOOLS = {
    "data": "corpus.data_command",
    "tokenizer": "corpus.tokenizer_command",
    "plan": "plan.command",
    "doctor": "doctor.command",
    "align": "align.command",
    "migrate": "migrate.command",
    "checkpoint": "convert.commands",
}
"""Command -> its module below `pretrain.tools`."""

_RUN_ELSEWHERE = {"train", "pretrain", "launch", "fit"}  # what other programs call `run`


class LazyCommands(click.Group):
    """A group that knows its commands by name and imports the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        """Return the commands that exist."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  click's signature
        """Import a command; None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(module_of(cmd_name)).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  as above
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default command before a recipe or an option that is not the group's own."""
        first = args[0] if args else "--help"
        own = {option for parameter in self.get_params(ctx) for option in parameter.opts}
        if first not in own and (first.startswith("-") or _is_recipe(first)):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args or [first])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Complete a command, or a file: the recipe of the default command."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415  only here

        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        named = [name for name in COMMANDS if name.startswith(incomplete)]
        return [CompletionItem(name, help=COMMANDS[name]) for name in named] or [
            CompletionItem(incomplete, type="file")
        ]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or suggest the nearest name."""
        if args[0] not in COMMANDS:
            meant = " Did you mean 'run'?" if args[0] in _RUN_ELSEWHERE else did_you_mean(args[0], COMMANDS)
            msg = f"'{args[0]}' is neither a command nor a recipe file.{meant}"
            raise click.UsageError(msg, ctx)
        return super().resolve_command(ctx, args)


def module_of(name: str) -> str:
    """Return the module of a command."""
    return f"pretrain.tools.{_OF_TOOLS[name]}" if name in _OF_TOOLS else f"pretrain.cli.{name}"


def _is_recipe(argument: str) -> bool:
    path = Path(argument)
    return path.suffix in {".yml", ".yaml"} or (argument not in COMMANDS and path.exists())
