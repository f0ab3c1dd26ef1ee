"""Links, commands and make targets in the project's Markdown pages."""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import click

from pretrain.cli.command_line import commands
from pretrain.cli.commands import DEFAULT
from pretrain.cli.stored_path import StoredPath
from structure.sources import ROOT, tracked

if TYPE_CHECKING:
    from collections.abc import Iterator

_FENCED = re.compile(r"^ {0,4}```[^\n]*\n(.*?)^ {0,4}```", re.DOTALL | re.MULTILINE)
_SHELL = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`(pretrain [^`]+)`")
_PROGRAMS = (
    "pretrain ", ".venv/bin/pretrain ", "make ", "torchrun ", ".venv/bin/torchrun ", "srun ",
    ".venv-ascend/bin/python -m pretrain.cli.main ",
)  # fmt: skip
_SUBSTITUTION = re.compile(r"\$\([^)]*\)")
_LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)


def pages() -> list[Path]:
    """Return the Markdown pages, relative to the root."""
    return [path for path in tracked() if path.suffix == ".md"]


def text_of(page: Path) -> str:
    """Return a page's text."""
    return (ROOT / page).read_text(encoding="utf-8")


def links(text: str) -> list[str]:
    """Return the targets of links that lead to files or headings, not those in code."""
    found = _LINK.findall(_FENCED.sub("", text))
    return [target for target in found if "://" not in target]


def anchors(text: str) -> set[str]:
    """Return the names under which headings can be linked to, as GitHub makes them."""
    headings = _HEADING.findall(_FENCED.sub("", text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def command_lines(text: str) -> Iterator[list[str]]:
    """Yield the words of every command of ours in fenced blocks: lines continued, comments and prompts dropped."""
    for block in _FENCED.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            command = line.strip().removeprefix("$ ")
            if command.startswith(_PROGRAMS):
                yield shlex.split(_SUBSTITUTION.sub("$words", command), comments=True)


def shell_lines(text: str) -> Iterator[list[str]]:
    """Yield the words of every line of the blocks marked sh, without variables that are set for one command."""
    for block in _SHELL.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while words and "=" in words[0]:
                words = words[1:]
            if words:
                yield words


def inline_commands(text: str) -> list[list[str]]:
    """Return the words of the commands of ours that a sentence or a table shows."""
    return [shlex.split(command) for command in _INLINE.findall(_FENCED.sub("", text))]


def arguments_of_pretrain(words: list[str]) -> list[str] | None:
    """Return what follows `pretrain` in a command, also where torchrun or srun starts it."""
    for position, word in enumerate(words):
        if word in {"pretrain", ".venv/bin/pretrain", "pretrain.cli.main"}:
            return words[position + 1 :]
    return None


def ranks_of(words: list[str]) -> int | None:
    """Return how many ranks torchrun or srun starts in a command; None where it starts none."""
    sizes = [
        int(words[position + 1])
        for position, word in enumerate(words)
        if word in {"--nnodes", "--nproc-per-node", "--nodes", "--ntasks-per-node"}
    ]
    return math.prod(sizes) if words[0] in {"torchrun", ".venv/bin/torchrun", "srun"} else None


def unknown_of(words: list[str]) -> list[str]:
    """Return the command and the options of a shown command that do not exist; files and values are not looked at."""
    command, name = commands, "pretrain"
    rest = words[1:]
    while isinstance(command, click.Group) and rest and rest[0].isalpha() and rest[0].islower():
        name, rest = rest[0], rest[1:]
        found = command.get_command(click.Context(command), name)
        if found is None:
            return [name]
        command = found
    if command is commands:
        command = commands.get_command(click.Context(commands), DEFAULT)  # `pretrain RECIPE`
    options = {option for parameter in command.params for option in parameter.opts} | {"-h", "--help"}
    return [word for word in rest if word.startswith("-") and word.partition("=")[0] not in options]


def called(arguments: list[str]) -> click.Context:
    """Parse a command line as pretrain does and return the command's context; nothing is run.

    Raises:
        click.ClickException: a command, option or argument that does not exist.
    """
    with patch.object(StoredPath, "copied", lambda _self, address: Path(address)):  # no document has a bucket
        context = commands.make_context("pretrain", list(arguments))
        while isinstance(context.command, click.Group):
            name, command, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
            context = command.make_context(name, rest, parent=context)
    return context
