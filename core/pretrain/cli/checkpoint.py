"""`pretrain checkpoint`: look into checkpoints of this program and of others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pretrain.checkpoint.formats.summary import Parts, Summary

_PATH = click.Path(path_type=Path)
_UNITS = ("B", "kB", "MB", "GB", "TB")


@click.group()
def command() -> None:
    """Look into checkpoints: those of this program, Megatron-LM, DeepSpeed, GPT-NeoX and Hugging Face."""


@command.command()
@click.argument("path", type=_PATH)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def inspect(*, path: Path, as_json: bool) -> None:
    """Print the format of a checkpoint, its model, layout, dtype and size; nothing in it is executed.

    PATH is the folder of a run, of its checkpoints (the latest is taken), or of one checkpoint.
    """
    import orjson  # noqa: PLC0415  kept out of --help

    from pretrain.checkpoint.formats.recognition import summary_of  # noqa: PLC0415  it imports torch

    summary = summary_of(path)
    if as_json:
        click.echo(orjson.dumps(summary.as_json(), option=orjson.OPT_INDENT_2))
    else:
        click.echo("\n".join(_lines(summary)))


def _lines(summary: Summary) -> list[str]:
    version = f" ({summary.version})" if summary.version else ""
    rows = {
        "path": str(summary.path),
        "format": f"{summary.format}{version}",
        "iteration": "not in the files" if summary.iteration is None else f"{summary.iteration:,}",
        "parameters": "not known" if summary.parameters is None else f"{summary.parameters:,}",
        "dtype": ", ".join(summary.dtypes),
        "layout": _layout(summary.parts),
        "contents": ", ".join(summary.contents),
        "files": f"{summary.files:,}, {_size(summary.size)}",
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


def _size(size: float) -> str:
    for unit in _UNITS[:-1]:
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} {_UNITS[-1]}"
