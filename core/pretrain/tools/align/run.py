"""`pretrain align`: records one side (`--record`), or both, each in a process of its own, and compares them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pretrain.checkpoint.stored_folder import checkpoint_folder
from pretrain.cli.run import start_ranks
from pretrain.errors import PretrainError, RecipeError, RunError
from pretrain.exit_codes import ExitCode
from pretrain.launch.job import ForwardJob
from pretrain.launch.nodes.nodes import Nodes
from pretrain.launch.placement import make_placement
from pretrain.launch.processes import parent_exit
from pretrain.launch.processes.failure import CRASH
from pretrain.launch.processes.supervision import stop_signals_exit
from pretrain.plugins.host.discovery import find_backend
from pretrain.plugins.host.manager import load_alone
from pretrain.plugins.host.members import require_device
from pretrain.recipe import load_recipe
from pretrain.recipe.layout import lay_out
from pretrain.recipe.recipe import keys_of_recipe
from pretrain.report.html import write_page
from pretrain.tools.align.comparing.adam_update import uncomparable_state
from pretrain.tools.align.comparing.compare import compare, different, differing_keys
from pretrain.tools.align.comparing.outcome import SIDES
from pretrain.tools.align.comparing.recording import Recording
from pretrain.tools.align.outcome_views import outcome_json, outcome_text, page
from pretrain.tools.align.recording.folder import weights_folder
from pretrain.tools.align.recording.record_rank import require_space
from pretrain.tools.convert.registry import summary_of
from pretrain.tools.corpus.recipe_corpus import prepare_corpus

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractContextManager

    from pretrain.recipe import Recipe

LOSS_SCALE = 4096
"""Of fp16, where the recipe has a dynamic one: that begins with steps that overflow and change nothing."""
_ALTERNATIVES = {"schedule.lr_warmup_iters", "schedule.lr_warmup_samples", "schedule.lr_warmup_fraction"}
"""Lengths of a warm-up, of which a recipe has one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One of the two ways to train a recipe."""

    recipe: Path
    overrides: tuple[str, ...] = ()  # "section.key=value", as the user gave them
    backend: str = "cpu"
    nproc: int | None = None  # ranks to start; None for as many as the layout needs
    checkpoint: Path | None = None  # whose weights are taken; None: `checkpoint.load`, or those of `train.seed`
    python: Path | None = None  # interpreter of another installation that records this side; None: this one

    @property
    def words(self) -> str:
        """The side in the words of the command line."""
        ranks = [] if self.nproc is None else [f"{self.nproc} rank{'s' * (self.nproc > 1)}"]
        python = [] if self.python is None else [str(self.python)]
        return ", ".join([f"backend {self.backend}", *self.overrides, *ranks, *python])

    def load(self) -> Recipe:
        """Return the recipe as the user has it, without the keys that another installation alone knows."""
        return self._load(self.overrides)

    def load_comparable(self) -> Recipe:
        """Return the recipe as it is recorded."""
        return self._load(self.comparable())

    def comparable(self) -> tuple[str, ...]:
        """Return overrides without which two correct sides would differ, after the user's of other keys."""
        # No dropout, whose random numbers are each device's own; no schedule: in a warm-up the first update is zero; no
        # compiled layers, so that each kernel is called.
        recipe = self.load()
        unit = "iters" if recipe.train.train_samples is None else "samples"
        more = [
            "model.hidden_dropout=0.0",
            "model.attention_dropout=0.0",
            "kernels.compile=none",
            "data.num_workers=0",
            "schedule.lr_decay_style=constant",
            f"schedule.lr_warmup_{unit}=0",
            "schedule.lr_wsd_decay_iters=null",
            "schedule.lr_wsd_decay_samples=null",
        ]
        if recipe.precision.dtype == "fp16" and recipe.precision.loss_scale is None:
            more.append(f"precision.loss_scale={LOSS_SCALE}")
        changed = {override.partition("=")[0] for override in more} | _ALTERNATIVES
        kept = [override for override in self.overrides if override.partition("=")[0].strip() not in changed]
        return (*kept, *more)

    def with_ranks_of(self, first: Side) -> Side:
        """Return this side with as many ranks as the first, unless it has its own number or other parallel sizes."""
        if self.nproc is not None or first.nproc is None:
            return self
        if self.overrides != first.overrides and self.load().least_ranks != first.load().least_ranks:
            return self
        return replace(self, nproc=first.nproc)

    def _load(self, overrides: Sequence[str]) -> Recipe:
        return load_recipe(self.recipe, overrides if self.python is None else _known(self.recipe, overrides))


def _known(recipe: Path, overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the overrides that this version takes: that of another installation may have other keys and values."""
    keys = keys_of_recipe()
    # Keys that take any mapping have others inside of them.
    inner = tuple(f"{key}." for key in keys.keys() - {key.rpartition(".")[0] for key in keys})
    paths = [override.partition("=")[0].strip() for override in overrides]
    wanted = [
        override for override, path in zip(overrides, paths, strict=True) if path in keys or path.startswith(inner)
    ]
    for kept in (overrides, wanted):
        if _takes(recipe, kept):
            return tuple(kept)
    return _valid(recipe, wanted)


def _valid(recipe: Path, overrides: Sequence[str]) -> tuple[str, ...]:
    """Return overrides that are valid together, one after the other: one may need a later one."""
    valid: tuple[str, ...] = ()
    longer: tuple[str, ...] | None = valid
    while longer is not None:
        valid = longer
        tries = (tuple(each for each in overrides if each in (*valid, more)) for more in overrides if more not in valid)
        longer = next((each for each in tries if _takes(recipe, each)), None)
    return valid


def _takes(recipe: Path, overrides: Sequence[str]) -> bool:
    try:
        load_recipe(recipe, overrides)
    except RecipeError:
        return False
    return True


_MAIN = "\nkill_on_parent_exit({parent})\nfrom pretrain.cli.main import main\nmain()\n"
"""The console script `pretrain`, after the text of `parent_exit`: another version may not have that module."""
_PLACES = """
import importlib.util
from pretrain.cli.commands import COMMANDS
COMMANDS["align"]
for name in {names}:
    print(importlib.util.find_spec(name).origin)
"""
_NAMES = ("pretrain", "torch")


def run_pretrain(python: Path | None, words: Sequence[str], *, shows_output: bool = True) -> int:
    """Run `pretrain` in a process of its own, which ends with this one; return its exit code."""
    program = Path(parent_exit.__file__).read_text(encoding="utf-8") + _MAIN.format(parent=os.getpid())
    command = [str(python or sys.executable), "-c", program, *words]
    output = sys.stderr.fileno() if shows_output else subprocess.DEVNULL
    try:
        with subprocess.Popen(command, stdout=output, env=_environment(python)) as process:
            try:
                return process.wait()
            except BaseException:  # a signal that asks this process to end
                process.terminate()
                raise
    except OSError as error:
        raise _not_started(command[0], error) from error


def is_this_installation(python: Path) -> bool:
    """Return True if an interpreter's pretrain and torch are those of this process."""
    command = [str(python), "-c", _PLACES.format(names=_NAMES)]
    try:
        done = subprocess.run(command, env=_environment(python), capture_output=True, text=True, check=False)
    except OSError as error:
        raise _not_started(command[0], error) from error
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        msg = f"{python} has no `pretrain align`: {why}\nGive --against-python that of an installation of pretrain."
        raise RunError(msg)
    here = [spec.origin for name in _NAMES if (spec := importlib.util.find_spec(name)) and spec.origin]
    return list(map(os.path.realpath, done.stdout.split("\n")[: len(_NAMES)])) == list(map(os.path.realpath, here))


def _environment(python: Path | None) -> dict[str, str] | None:
    if python is None:
        return None
    # Neither PYTHONPATH nor the working directory leads to a pretrain. Other folders stay: CANN's packages need them.
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [path for path in paths if path and not (Path(path) / "pretrain").is_dir()]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(kept), "PYTHONSAFEPATH": "1"}


def _not_started(python: str, error: OSError) -> RunError:
    return RunError(
        f"{python} cannot be started: {error.strerror}\nGive --against-python an interpreter, such as .venv/bin/python."
    )


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
    nproc = side.nproc or side.load().least_ranks
    placement = make_placement(side.recipe, job.overrides, side.backend, nodes=Nodes(), nproc=nproc, world=None)
    _require_comparable(placement.recipe)
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
    given = side.checkpoint or recipe.checkpoint.load
    checkpoint = None if given is None else str(checkpoint_folder(given))
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


def _require_comparable(recipe: Recipe) -> None:
    """Check that a side's tensors can be compared with those of another layout, and its updates computed again."""
    dtype, fp8, optimizer = recipe.precision.dtype, recipe.precision.fp8, recipe.optimizer.name
    why = ""
    has_experts = recipe.model.num_experts is not None
    if has_experts and dtype != "fp32":
        why = (
            f"precision.dtype {dtype} with model.num_experts cannot be compared: where rounding lets a token choose "
            "another expert, its gradients differ by right.\nCompare in fp32: --set precision.dtype=fp32."
        )
    elif has_experts and fp8 is not None:
        why = (
            f"precision.fp8 {fp8} with model.num_experts cannot be compared: where rounding lets a token choose "
            "another expert, its gradients differ by right.\nCompare without: --set precision.fp8=null."
        )
    elif optimizer not in {"adam", "adamw"}:
        why = (
            f"optimizer.name {optimizer} cannot be compared: only Adam's updates are computed again.\n"
            "Compare with --set optimizer.name=adamw: the gradients of the first step are the same."
        )
    if why := why or uncomparable_state(recipe.optimizer):
        msg = f"{recipe.source}: {why}"
        raise RunError(msg)


def require_ready(sides: Sequence[Side], recorded: Recording | None) -> None:
    """Check that recipes, devices, ranks and weights of the sides are right, and that the sides train the same."""
    recipes = [side.load_comparable() for side in sides]
    for side, recipe in zip(sides, recipes, strict=True):
        _require_comparable(recipe)
        if side.python is None:  # another installation may know other keys and backends, and checks them itself
            lay_out(recipe, side.nproc or recipe.least_ranks)
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
            summary_of(checkpoint_folder(side.checkpoint or of_recipe or ""))


def require_writable(page: Path) -> None:
    """Check that a page can be written, before the hours that are spent for it."""
    folder = next(each for each in page.absolute().parents if each.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        why = "is not writable" if folder.is_dir() else "is a file, not a folder"
        msg = f"{page} cannot be written: {folder} {why}.\nName another file by --html."
        raise RunError(msg)
