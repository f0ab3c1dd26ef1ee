"""`pretrain align`: records one side (`--record`), or both, each in a process of its own, and compares them."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pretrain.cli.run import start_ranks
from pretrain.errors import PretrainError, RunError
from pretrain.exit_codes import ExitCode
from pretrain.launch.job import ForwardJob
from pretrain.launch.nodes.nodes import Nodes
from pretrain.launch.placement import make_placement
from pretrain.launch.processes.failure import CRASH
from pretrain.launch.processes.signals import stop_signals_exit
from pretrain.plugins.host.discovery import find_backend
from pretrain.plugins.host.manager import load_alone
from pretrain.plugins.host.members import require_device
from pretrain.recipe.layout import lay_out
from pretrain.report.html import write_page
from pretrain.tools.align.comparing.compare import compare, different, differing_keys
from pretrain.tools.align.comparing.outcome import SIDES
from pretrain.tools.align.comparing.recording import Recording
from pretrain.tools.align.outcome_views import outcome_json, outcome_text, page
from pretrain.tools.align.recording.folder import weights_folder
from pretrain.tools.align.recording.record_rank import require_space
from pretrain.tools.align.side import Side, is_this_installation, run_pretrain
from pretrain.tools.convert.registry import summary_of
from pretrain.tools.corpus.recipe_corpus import prepare_corpus

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractContextManager

    from pretrain.recipe import Recipe

RECORD = "pretrain.tools.align.recording.record_rank:record"


def compare_sides(
    sides: tuple[Side, Side | Path], *, steps: int, positions: int, keep: Path | None, html: Path | None, as_json: bool
) -> int:
    """Record what is not recorded yet, compare, and show the result; return the exit code."""
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
    shown = json.dumps(outcome_json(outcome, recordings), indent=2) if as_json else outcome_text(outcome, recordings)
    click.echo(shown)
    if html is not None:
        write_page(page(outcome, recordings), html, PretrainError)
        click.echo(f"\npage: {html}", err=as_json)
    return ExitCode.COMPLETE if outcome.is_aligned else ExitCode.FAILURE


def _record(
    sides: tuple[Side, Side | Path], recorded: Recording | None, folder: Path, *, steps: int, positions: int
) -> tuple[int, list[Recording]]:
    source = recorded.folder if recorded else None
    recordings = []
    to_record = [(side, name) for side, name in zip(sides, SIDES, strict=True) if isinstance(side, Side)]
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
    require_ready(sides, recorded)
    for side, name in zip(sides, SIDES, strict=False):
        make_folder(folder / name)
        if side.python is not None and is_this_installation(side.python):
            click.echo(f"warning: {side.python} runs the same pretrain and torch as this installation", err=True)
    require_space(folder, [side.load() for side in sides], steps, positions)
    for side in sides[1:]:  # mistakes of the first one are found as it is recorded
        if code := explain_in_process(side):
            return _not_recorded(SIDES[1], code)
    return 0


def _not_recorded(name: str, code: int) -> int:
    click.echo(f"the {name} side was not recorded: nothing was compared", err=True)
    return ExitCode.PARTIAL if code < 0 or code == CRASH else code


def record_side(side: Side, folder: Path, *, steps: int, positions: int) -> int:
    """Record a side into a folder; return the exit code."""
    job = job_of(side, folder, steps=steps, positions=positions)
    nproc = side.nproc or side.load().model_parallel_size
    placement = make_placement(side.recipe, job.overrides, side.backend, nodes=Nodes(), nproc=nproc, world=None)
    prepare_corpus(placement.recipe)
    make_folder(folder)
    require_space(folder, [placement.recipe], steps, positions)
    code = start_ranks(placement, job, None)
    if code == 0:
        click.echo(f"recorded {steps} step{'s' * (steps > 1)}")
    return ExitCode.PARTIAL if code == CRASH else code


def make_folder(folder: Path) -> None:
    """Make the folder of a recording."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            msg = f"{folder} is not empty.\nName another folder, or remove it."
            raise RunError(msg)
    except OSError as error:
        msg = f"{folder} cannot be created: {error.strerror}\nName another folder."
        raise RunError(msg) from error


def job_of(side: Side, folder: Path, *, steps: int, positions: int) -> ForwardJob:
    """Return the job of the ranks that record a side."""
    recipe = side.load()
    checkpoint = str(side.checkpoint) if side.checkpoint else recipe.checkpoint.load
    return ForwardJob(
        recipe=str(side.recipe),
        overrides=side.comparable(),
        backend=side.backend,
        function=RECORD,
        options={"folder": str(folder.absolute()), "steps": steps, "positions": positions, "checkpoint": checkpoint},
        reads_data=True,
    )


def record_in_process(side: Side, folder: Path, *, steps: int, positions: int) -> int:
    """Record a side by `pretrain align --record` in a process with a backend of its own; return its exit code."""
    words = ["align", str(side.recipe), "--backend", side.backend, "--record", str(folder)]
    words += ["--steps", str(steps), "--positions", str(positions), *_set(side.overrides)]
    words += [] if side.nproc is None else ["--nproc", str(side.nproc)]
    words += [] if side.checkpoint is None else ["--checkpoint", str(side.checkpoint)]
    return run_pretrain(side.python, words)


def explain_in_process(side: Side) -> int:
    """Find mistakes in the names of kernels, keys and backend by `pretrain explain`; return its exit code."""
    words = ["explain", str(side.recipe), "--backend", side.backend, *_set(side.comparable())]
    return run_pretrain(side.python, words, shows_output=False)


def _set(overrides: Iterable[str]) -> list[str]:
    return [word for override in overrides for word in ("--set", override)]


def require_ready(sides: Sequence[Side], recorded: Recording | None) -> None:
    """Check that recipes, devices, ranks and weights of the sides are right, and that the sides train the same."""
    recipes = [side.load_comparable() for side in sides]
    for side, recipe in zip(sides, recipes, strict=True):
        if side.python is None:  # another installation may know other keys and backends, and checks them itself
            lay_out(recipe, side.nproc or recipe.model_parallel_size)
            require_device(load_alone(find_backend(side.backend)))
    trained = [recipe.model_dump(mode="json") for recipe in recipes]
    trained += [] if recorded is None else [recorded.manifest["recipe"]]
    differing = differing_keys(*trained)[0] if len(trained) > 1 else []
    if differing:
        raise RunError(different(differing))
    _require_weights(sides, recipes, is_recorded=recorded is not None)


def _require_weights(sides: Sequence[Side], recipes: Sequence[Recipe], *, is_recorded: bool) -> None:
    """Check the checkpoints that the sides begin with: the recipe's is taken by the first, unless one is recorded."""
    if len({recipe.checkpoint.load for recipe in recipes}) > 1:
        msg = (
            "--set-against checkpoint.load would have no effect: both sides begin with the same weights.\n"
            "Give the second side's weights by --checkpoint-against."
        )
        raise RunError(msg)
    for number, (side, recipe) in enumerate(zip(sides, recipes, strict=True)):
        of_recipe = recipe.checkpoint.load if number == 0 and not is_recorded else None
        if side.checkpoint is not None or of_recipe is not None:
            summary_of(Path(side.checkpoint or of_recipe or ""))


def require_writable(page: Path) -> None:
    """Check that a page can be written, before the hours that are spent for it."""
    folder = next(each for each in page.absolute().parents if each.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        why = "is not writable" if folder.is_dir() else "is a file, not a folder"
        msg = f"{page} cannot be written: {folder} {why}.\nName another file by --html."
        raise RunError(msg)
