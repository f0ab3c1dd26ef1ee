"""Recording of two sides, and their comparison."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pretrain.exit_codes import ExitCode
from pretrain.tools.align.commands.crashes import NOT_COMPARED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from pretrain.tools.align.comparing.compared_sides import Outcome
    from pretrain.tools.align.reading.recording import Recording
    from pretrain.tools.align.side import Side

FOLDERS = ("first", "second")


def compare_sides(
    sides: tuple[Side, Side | Path], *, steps: int, positions: int, keep: Path | None, html: Path | None, as_json: bool
) -> int:
    """Record what is not recorded yet, compare, and show the result; return the exit code.

    Args:
        sides: the second one may be the folder of a recording.
        steps: to take.
        positions: of each sequence that are kept at the most.
        keep: folder for the recordings; None: they are removed.
        html: file for a page; None for none.
        as_json: print one JSON object instead of lines.
    """
    from pretrain.launch.processes.signals import stop_signals_exit  # noqa: PLC0415
    from pretrain.tools.align.comparing.compare import compare  # noqa: PLC0415  --help needs none of these
    from pretrain.tools.align.reading.recording import Recording  # noqa: PLC0415
    from pretrain.tools.align.ready_sides import require_writable  # noqa: PLC0415

    second = Recording.open(sides[1]) if isinstance(sides[1], Path) else None
    if second is not None:
        steps, positions = second.steps, int(second.manifest["positions"])
    if html is not None:
        require_writable(html)
    kept: AbstractContextManager[str]
    kept = nullcontext(str(keep)) if keep else tempfile.TemporaryDirectory(prefix="pretrain-align-")
    with stop_signals_exit(), kept as folder:
        code, recordings = _record(sides, second, Path(folder), steps=steps, positions=positions)
        if code:
            return code
        outcome = compare(*recordings)
    _show(outcome, recordings, html, as_json=as_json)
    return ExitCode.COMPLETE if outcome.is_aligned else ExitCode.FAILURE


def _record(
    sides: tuple[Side, Side | Path], recorded: Recording | None, folder: Path, *, steps: int, positions: int
) -> tuple[int, list[Recording]]:
    """Record the sides that are not recorded; return the exit code of the one that failed, and the recordings."""
    from dataclasses import replace  # noqa: PLC0415

    from pretrain.tools.align.reading.recording import Recording  # noqa: PLC0415
    from pretrain.tools.align.record_side import record_in_process  # noqa: PLC0415
    from pretrain.tools.align.recording.weights_folder import weights_folder  # noqa: PLC0415
    from pretrain.tools.align.side import Side  # noqa: PLC0415

    source = recorded.folder if recorded else None
    recordings = []
    to_record = [(side, name) for side, name in zip(sides, FOLDERS, strict=True) if isinstance(side, Side)]
    if code := _prepare([side for side, _ in to_record], recorded, folder, steps=steps, positions=positions):
        return code, []
    for side, name in to_record:
        if side.checkpoint is None and source is not None:
            side = replace(side, checkpoint=weights_folder(source, 0).absolute())  # noqa: PLW2901  the same weights
        target = folder / name
        click.echo(f"{name} side: {side.words}", err=True)
        if code := record_in_process(side, target, steps=steps, positions=positions):
            return _not_recorded(name, code), []
        recordings.append(Recording.open(target))
        source = source or target
    return 0, [*recordings, recorded] if recorded else recordings


def _prepare(sides: Sequence[Side], recorded: Recording | None, folder: Path, *, steps: int, positions: int) -> int:
    """Find the mistakes of both sides before the first is recorded, and make their folders; return the exit code."""
    from pretrain.tools.align.disk_space import require_space  # noqa: PLC0415
    from pretrain.tools.align.ready_sides import require_ready  # noqa: PLC0415
    from pretrain.tools.align.record_side import explain_in_process, make_folder  # noqa: PLC0415
    from pretrain.tools.align.side_process import is_this_installation  # noqa: PLC0415

    require_ready(sides, recorded)
    for side, name in zip(sides, FOLDERS, strict=False):
        make_folder(folder / name)
        if side.python is not None and is_this_installation(side.python):
            click.echo(f"warning: {side.python} has the pretrain and the torch of this installation", err=True)
    require_space(folder, [side.load() for side in sides], steps, positions)
    for side, name in list(zip(sides, FOLDERS, strict=False))[1:]:  # the first one's are found as it is recorded
        if code := explain_in_process(side):
            return _not_recorded(name, code)
    return 0


def _not_recorded(name: str, code: int) -> int:
    """Say that a side was not recorded; return the exit code for that of its process."""
    from pretrain.launch.processes.failure import CRASH  # noqa: PLC0415

    click.echo(f"the {name} side was not recorded: nothing was compared", err=True)
    return NOT_COMPARED if code < 0 or code == CRASH else code


def _show(outcome: Outcome, sides: list[Recording], html: Path | None, *, as_json: bool) -> None:
    if as_json:
        import json  # noqa: PLC0415

        from pretrain.tools.align.showing.outcome_json import outcome_json  # noqa: PLC0415

        click.echo(json.dumps(outcome_json(outcome, sides), indent=2))
    else:
        from pretrain.tools.align.showing.outcome_text import outcome_text  # noqa: PLC0415

        click.echo(outcome_text(outcome, sides))
    if html is not None:
        from pretrain.tools.align.showing.outcome_page import write_page  # noqa: PLC0415

        write_page(outcome, sides, html)
        click.echo(f"\npage: {html}", err=as_json)
