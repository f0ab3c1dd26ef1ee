"""`pretrain checkpoint inspect`: what a checkpoint is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pretrain.cli.local_path import LocalPath
from pretrain.report.plain_text import size_text

if TYPE_CHECKING:
    from pathlib import Path

    from pretrain.tools.convert.formats.summary import Parts, Summary

_PATH = LocalPath()


@click.command("inspect")
@click.argument("path", type=_PATH)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, path: Path, as_json: bool) -> None:
    """Print the format of a checkpoint, its model, layout, dtype and size; nothing in it is executed.

    PATH is the folder of a run, of its checkpoints (the latest is taken), or of one checkpoint.
    """
    import orjson  # noqa: PLC0415  kept out of --help

    from pretrain.checkpoint.checksums import are_foreign, are_there  # noqa: PLC0415
    from pretrain.tools.convert.formats.recognition import summary_of  # noqa: PLC0415  it imports torch

    summary = summary_of(path)
    none = "checksums.txt is another program's" if are_foreign(summary.path) else "no checksums.txt"
    checksums = _verified(summary.path) if are_there(summary.path) else none
    if as_json:
        click.echo(orjson.dumps(summary.as_json() | {"checksums": checksums}, option=orjson.OPT_INDENT_2))
    else:
        click.echo("\n".join(_lines(summary, checksums)))


def _verified(folder: Path) -> str:
    """Return what of a folder was compared with its checksums when it was opened."""
    from pretrain.checkpoint.checksums import SMALL_FILES, bytes_of  # noqa: PLC0415  kept out of --help

    read, there = bytes_of(folder, SMALL_FILES)
    if read == there:
        return "match"
    return (
        f"match in the {size_text(read)} that were read; of other files only the sizes were compared: see pretrain "
        "checkpoint verify"
    )


def _lines(summary: Summary, checksums: str) -> list[str]:
    version = f" ({summary.version})" if summary.version else ""
    rows = {
        "path": str(summary.path),
        "format": f"{summary.format}{version}",
        "iteration": "not in the files" if summary.iteration is None else f"{summary.iteration:,}",
        "parameters": "not known" if summary.parameters is None else f"{summary.parameters:,}",
        "dtype": ", ".join(summary.dtypes),
        "layout": _layout(summary.parts),
        "contents": ", ".join(summary.contents),
        "files": f"{summary.files:,}, {size_text(summary.size)}",
        "checksums": checksums,
    }
    lines = [f"{f'{name}:':<12}{value}" for name, value in rows.items()]
    return [*lines, "model:", *(f"  {name}: {_yaml(value)}" for name, value in summary.model.items())]


def _layout(parts: Parts) -> str:
    sizes = {
        "tensor": parts.tensor,
        "pipeline": parts.pipeline,
        "virtual pipeline": parts.virtual_pipeline,
        "expert": parts.expert,
        "data": parts.data,
    }
    shown = [f"{name} {size}" for name, size in sizes.items() if size > 1]
    return " x ".join(shown) or "one part"


def _yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
