"""Recording of two sides, and their comparison."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pretrain.align.comparing.compared_sides import Outcome
    from pretrain.align.reading.recording import Recording
    from pretrain.align.side import Side

FOLDERS = ("first", "second")
NOT_COMPARED = 3
"""Exit code where a side has crashed; 1 is that of sides that differ."""


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
    from pretrain.align.comparing.compare import compare  # noqa: PLC0415  --help needs none of these
    from pretrain.align.reading.recording import Recording  # noqa: PLC0415
    from pretrain.launch.restarts.stop_signals import stop_signals_exit  # noqa: PLC0415

    second = Recording.open(sides[1]) if isinstance(sides[1], Path) else None
    if second is not None:
        steps, positions = second.steps, int(second.manifest["positions"])
    kept: AbstractContextManager[str]
    kept = nullcontext(str(keep)) if keep else tempfile.TemporaryDirectory(prefix="pretrain-align-")
    with stop_signals_exit(), kept as folder:
        code, recordings = _record(sides, second, Path(folder), steps=steps, positions=positions)
        if code:
            return code
        outcome = compare(*recordings)
    _show(outcome, recordings, html, as_json=as_json)
    return 0 if outcome.is_aligned else 1


def _record(
    sides: tuple[Side, Side | Path], recorded: Recording | None, folder: Path, *, steps: int, positions: int
) -> tuple[int, list[Recording]]:
    """Record the sides that are not recorded; return the exit code of the one that failed, and the recordings."""
    from dataclasses import replace  # noqa: PLC0415

    from pretrain.align.disk_space import require_space  # noqa: PLC0415
    from pretrain.align.reading.recording import Recording  # noqa: PLC0415
    from pretrain.align.ready_sides import require_ready  # noqa: PLC0415
    from pretrain.align.record_side import make_folder, record_in_process  # noqa: PLC0415
    from pretrain.align.recording.weights_folder import weights_folder  # noqa: PLC0415
    from pretrain.align.side import Side  # noqa: PLC0415
    from pretrain.launch.processes.failure import CRASH  # noqa: PLC0415

    source = recorded.folder if recorded else None
    recordings = []
    to_record = [(side, name) for side, name in zip(sides, FOLDERS, strict=True) if isinstance(side, Side)]
    require_ready([side for side, _ in to_record], recorded)
    for _, name in to_record:
        make_folder(folder / name)
    require_space(folder, [side.load() for side, _ in to_record if side.python is None], steps, positions)
    for side, name in to_record:
        if side.checkpoint is None and source is not None:
            side = replace(side, checkpoint=weights_folder(source, 0).absolute())  # noqa: PLW2901  the same weights
        target = folder / name
        click.echo(f"{name} side: {side.words}", err=True)
        if code := record_in_process(side, target, steps=steps, positions=positions):
            click.echo(f"the {name} side was not recorded: nothing was compared", err=True)
            return (NOT_COMPARED if code < 0 or code == CRASH else code), []
        recordings.append(Recording.open(target))
        source = source or target
    return 0, [*recordings, recorded] if recorded else recordings


def _show(outcome: Outcome, sides: list[Recording], html: Path | None, *, as_json: bool) -> None:
    if as_json:
        import json  # noqa: PLC0415

        from pretrain.align.showing.outcome_json import outcome_json  # noqa: PLC0415

        click.echo(json.dumps(outcome_json(outcome, sides), indent=2))
    else:
        from pretrain.align.showing.outcome_text import outcome_text  # noqa: PLC0415

        click.echo(outcome_text(outcome, sides))
    if html is not None:
        from pretrain.align.showing.outcome_page import write_page  # noqa: PLC0415

        write_page(outcome, sides, html)
        click.echo(f"\npage: {html}", err=as_json)
