"""Links, commands and make targets in the project's Markdown pages."""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import click

from pretrain.cli.main import commands
from pretrain.cli.stored_path import StoredPath
from structure.sources import ROOT, tracked

if TYPE_CHECKING:
    from collections.abc import Iterator

_FENCED = re.compile(r"^```[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
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
    """Yield the words of every command in fenced blocks: lines continued, comments and prompts dropped."""
    for block in _FENCED.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            if line.strip().startswith(("pretrain ", ".venv/bin/pretrain ", "make ", "torchrun ", "srun ")):
                yield shlex.split(line, comments=True)


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
    return math.prod(sizes) if words[0] in {"torchrun", "srun"} else None


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
