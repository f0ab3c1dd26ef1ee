"""`pretrain checkpoint verify`: whether a checkpoint can be read, and equals another."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from pretrain.cli.local_path import LocalPath
from pretrain.exit_codes import ExitCode
from pretrain.report.plain_text import size_text
from pretrain.report.progress_bar import ByteCount, ProgressBar
from pretrain.tools.convert.commands.model_settings import model_settings, parsed

if TYPE_CHECKING:
    from pathlib import Path

    from pretrain.tools.convert.exchange.verify import Difference
    from pretrain.tools.convert.weights.model_weights import ModelWeights

DIFFERENT = ExitCode.FAILURE
_PATH = LocalPath()
_SHOWN = 20


@click.command("verify")
@click.argument("path", type=_PATH)
@click.option("--against", type=_PATH, metavar="OTHER", help="Compare all weights with this checkpoint's.")
@model_settings
def command(*, path: Path, against: Path | None, settings: tuple[str, ...]) -> int:
    """Read all weights of the checkpoint at PATH: complete, of the right shapes, finite.

    Files are compared with checksums.txt, or with the checksums that torch.save writes into its own; safetensors has
    none.

    With --against weights and settings are compared with those of another checkpoint, of any format; exit code 1 if
    any differ.
    """
    from pretrain.checkpoint.checksums import Share  # noqa: PLC0415
    from pretrain.tools.convert.dialects.registry import read_weights  # noqa: PLC0415  it imports torch
    from pretrain.tools.convert.exchange.verify import (  # noqa: PLC0415
        differences,
        files_without_checksums,
        not_finite,
        settings_that_differ,
    )

    given = parsed(settings)
    with ProgressBar() as bar:
        weights = read_weights(path, given, Share(begin=partial(ByteCount, bar)))
        broken = not_finite(weights, ByteCount(bar, _size(weights), "read"))
    unverified = files_without_checksums(weights)
    if broken:
        click.echo(f"{weights.path}: not finite: {', '.join(broken[:_SHOWN])}", err=True)
        return DIFFERENT
    what = f"{len(weights.tensors):,} weights, {size_text(_size(weights))}"
    click.echo(f"{weights.path} ({weights.format}): {what}, complete and finite; {_checked(unverified)}")
    _name_foreign(weights)
    if against is None:
        return 0
    with ProgressBar() as bar:
        other = read_weights(against, given, Share(begin=partial(ByteCount, bar)))
        found = differences(weights, other, ByteCount(bar, _size(weights), "compared"))
    _name_foreign(other)
    differing = settings_that_differ(weights, other)
    for name, (ours, theirs) in differing.items():
        click.echo(f"different model: {name} {ours}, there {theirs}")
    return _show([each for each in found if each.largest != 0.0], weights, other) or (DIFFERENT if differing else 0)


def _name_foreign(weights: ModelWeights) -> None:
    from pretrain.checkpoint.checksums import FILE, are_foreign  # noqa: PLC0415  kept out of --help

    if are_foreign(weights.path):
        click.echo(f"{weights.path / FILE} is another program's, and was not compared")


def _checked(unverified: list[Path]) -> str:
    if not unverified:
        return "checksums match"
    files = "1 file has" if len(unverified) == 1 else f"{len(unverified)} files have"
    return f"{files} no checksums ({unverified[0].name}): a changed number would not be found"


def _size(weights: ModelWeights) -> int:
    return sum(tensor.nbytes for tensor in weights.tensors.values())


def _show(different: list[Difference], weights: ModelWeights, other: ModelWeights) -> int:
    if not different:
        click.echo(f"equal to {other.path} ({other.format}) in every number")
        return 0
    click.echo(f"different from {other.path} ({other.format}) in {len(different)} of {len(weights.tensors)} weights:")
    for each in sorted(different, key=lambda each: -each.largest)[:_SHOWN]:
        click.echo(f"  {each.name}: {each.shape or f'by at most {each.largest:.3g}'}")
    return DIFFERENT
