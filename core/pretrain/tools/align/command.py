"""The command `pretrain align`."""

from __future__ import annotations

import sys
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from pretrain.cli.options import LocalPath, backend_option
from pretrain.cli.stored_path import StoredPath
from pretrain.cli.words import override_names
from pretrain.errors import PretrainError
from pretrain.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator

_OF_COMPARISON = {
    *("against", "overrides_against", "nproc_against", "checkpoint_against", "python_against"),
    *("keep", "html", "as_json", "steps", "positions"),
}
"""Parameters that have an effect where two sides are recorded, and else not all."""


def _name_or_local_path(context: click.Context, parameter: click.Parameter, given: str | None) -> str | None:
    """Refuse a URL as options with paths do; leave names as they are."""
    return given and str(LocalPath().convert(given, parameter, context))


@click.command(short_help="Find the first layer and kernel in which two ways to train a recipe differ.")
@click.argument("recipe", type=LocalPath(), metavar="RECIPE")
@backend_option
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Change a key for both sides.",
    shell_complete=override_names,
)
@click.option("--nproc", type=click.IntRange(min=1), metavar="N", help="Ranks.  [default: tensor x pipeline x context]")
@click.option(
    "--checkpoint",
    type=StoredPath(is_checkpoint=True),
    metavar="PATH",
    help="Start from its weights.  [default: checkpoint.load, or those of train.seed]",
)
@click.option(
    "--against",
    callback=_name_or_local_path,
    metavar="NAME|DIR",
    help="The second side's backend, or the folder of a recording.  [default: the same backend]",
)
@click.option(
    "--set-against",
    "overrides_against",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Change a key for the second side alone: its engine, layout, kernels, dtype.",
    shell_complete=override_names,
)
@click.option("--nproc-against", type=click.IntRange(min=1), metavar="N", help="Ranks of the second side.")
@click.option(
    "--checkpoint-against",
    type=LocalPath(),
    metavar="PATH",
    help="The second side's weights.  [default: the first side's]",
)
@click.option(
    "--against-python",
    "python_against",
    type=LocalPath(),
    metavar="FILE",
    help="Python of another installation, with another version of pretrain, torch or the backend.",
)
@click.option(
    "--record",
    type=LocalPath(),
    metavar="DIR",
    help="Only record one side, for a comparison on another machine.",
)
@click.option("--steps", type=click.IntRange(min=1), default=2, show_default=True, metavar="N", help="Steps to take.")
@click.option(
    "--positions",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    metavar="N",
    help="Record at most N tokens of each sequence, evenly spread.",
)
@click.option("--keep", type=LocalPath(), metavar="DIR", help="Keep both recordings here.")
@click.option(
    "--html", type=LocalPath(dir_okay=False), metavar="FILE", help="Also write a page with the differences over depth."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(
    context: click.Context,
    *,
    recipe: Path,
    backend: str,
    overrides: tuple[str, ...],
    nproc: int | None,
    checkpoint: Path | None,
    against: str | None,
    overrides_against: tuple[str, ...],
    nproc_against: int | None,
    checkpoint_against: Path | None,
    python_against: Path | None,
    record: Path | None,
    steps: int,
    positions: int,
    keep: Path | None,
    html: Path | None,
    as_json: bool,
) -> int:
    """Train a few steps of RECIPE in two ways, with the same weights and samples, and find where they first differ.

    It compares each kernel's output and the gradients of its inputs, layer by layer, and each parameter's gradient
    and update. The exit code is 0 if nothing differs by more than the dtype explains, 1 if something does, 2 after a
    mistake, and 3 after a crash of a side or of the comparison.

    pretrain align recipes/quickstart.yml --set-against parallel.tensor_model_parallel_size=2
    """
    with crashes_exit_with_3():
        from pretrain.tools.align.run import Side, compare_sides, record_side  # noqa: PLC0415  --help needs none of it

        first = Side(recipe=recipe, overrides=overrides, backend=backend, nproc=nproc, checkpoint=checkpoint)
        if record is not None:
            _require_none(context, "--record records one side", but=("steps", "positions"))
            return record_side(first, record, steps=steps, positions=positions)
        recorded = None
        if against is not None and _is_recording(against):
            recorded = Path(against)
            _require_none(context, f"--against {against} is a recording", but=("against", "keep", "html", "as_json"))
        second = Side(
            recipe=recipe,
            overrides=(*overrides, *overrides_against),
            backend=backend if against is None else against,
            nproc=nproc_against,
            checkpoint=checkpoint_against,
            python=python_against,
        )
        sides = (first, recorded or second.with_ranks_of(first))
        return compare_sides(sides, steps=steps, positions=positions, keep=keep, html=html, as_json=as_json)


def _is_recording(against: str) -> bool:
    """Say whether a value of --against is a folder, not a backend: an installed backend's name is always one."""
    from pretrain.plugins.host.discovery import installed_backends  # noqa: PLC0415
    from pretrain.tools.align.recording.folder import FILE  # noqa: PLC0415

    if "/" in against:
        return True
    return (Path(against) / FILE).is_file() and against not in {each.name for each in installed_backends()}


def _require_none(context: click.Context, reason: str, but: tuple[str, ...] = ()) -> None:
    names = _OF_COMPARISON.difference(but)
    options = [parameter for parameter in context.command.params if parameter.name in names]
    is_given = ParameterSource.COMMANDLINE
    given = [each.opts[0] for each in options if context.get_parameter_source(str(each.name)) is is_given]
    if given:
        msg = f"{reason}: {', '.join(given)} would have no effect.\nLeave them out."
        raise click.UsageError(msg)


@contextmanager
def crashes_exit_with_3() -> Iterator[None]:
    """Show the traceback of an exception that is no user error, and exit with 3, as 1 means that the sides differ."""
    try:
        yield
    except (PretrainError, click.ClickException, click.Abort):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:  # shown by `pretrain.cli.main`
            raise
        traceback.print_exception(error)
        sys.exit(ExitCode.PARTIAL)
