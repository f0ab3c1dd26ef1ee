"""`pretrain checkpoint recipe`: the model section that fits a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pretrain.cli.options import LocalPath
from pretrain.tools.convert.commands.model_settings import model_settings, parsed

if TYPE_CHECKING:
    from pathlib import Path


@click.command("recipe")
@click.argument("path", type=LocalPath())
@model_settings
def command(*, path: Path, settings: tuple[str, ...]) -> None:
    """Print the section `model` of a recipe that continues from the checkpoint at PATH."""
    import yaml  # noqa: PLC0415  kept out of --help

    from pretrain.checkpoint.checksums import SMALL_FILES  # noqa: PLC0415
    from pretrain.tools.convert.dialects.registry import read_weights  # noqa: PLC0415  it imports torch
    from pretrain.tools.convert.exchange.recipe_section import recipe_section  # noqa: PLC0415

    weights = read_weights(path, parsed(settings), SMALL_FILES)  # no weight is read
    click.echo(f"# {weights.path} ({weights.format}); {weights.rows:,} rows of vocabulary")
    click.echo(yaml.safe_dump({"model": recipe_section(weights.model)}, sort_keys=False), nl=False)
