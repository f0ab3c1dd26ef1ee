"""Commands that build token files as preprocessing scripts do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pretrain.errors import MigrateError
from pretrain.tools.migrate.commands.output import DIFFERS

if TYPE_CHECKING:
    from pathlib import Path

    from pretrain.tools.migrate.sources.source import Source


def show_builds(sources: list[Source], output: Path | None) -> int:
    """Print the commands that build token files as preprocessing scripts do, and return the exit code."""
    from pretrain.tools.migrate.next_commands import build_command  # noqa: PLC0415  kept out of --help
    from pretrain.tools.migrate.outcome_lists import report  # noqa: PLC0415

    if output is not None:
        msg = f"{sources[0].name} only builds token files: there is no recipe to write.\nLeave --output out."
        raise MigrateError(msg)
    builds = [build_command(arguments) for source in sources for arguments in source.preprocessing]
    outcomes = [outcome for _, found in builds for outcome in found]
    click.echo(report(outcomes), err=True)
    for build, _ in builds:
        click.echo(build)
    return DIFFERS if any(outcome.fate == "not supported" for outcome in outcomes) else 0
