"""Output of a migration: the text, the report, and the exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pretrain.errors import MigrateError
from pretrain.exit_codes import ExitCode

if TYPE_CHECKING:
    from pathlib import Path

    from pretrain.tools.migrate.migration import Migration

NOTHING = "Nothing is written: --strict, and something is not supported."

DIFFERS = ExitCode.PARTIAL
"""Exit code of a migration after which something is not supported."""


def require_free(output: Path | None, *, replaced: bool) -> None:
    """Check that a file is not replaced by mistake.

    Raises:
        MigrateError: it exists.
    """
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
    from pretrain.tools.migrate.outcome_lists import report  # noqa: PLC0415  kept out of --help

    click.echo(f"Taken for {migration.taken_for}.", err=True)
    click.echo(report(migration.outcomes), err=True)
    for notice in migration.notices:
        click.echo(f"Note: {notice}", err=True)
    if not written:
        click.echo(NOTHING, err=True)
        return
    for line in migration.commands(str(output or "recipe.yml")):
        click.echo(line, err=True)
