"""One of the two ways to train a recipe, and processes of `pretrain` for it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.errors import RecipeError, RunError
from pretrain.launch.processes import parent_exit
from pretrain.recipe import load_recipe
from pretrain.recipe.recipe import keys_of_recipe

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        if self.overrides != first.overrides and self.load().model_parallel_size != first.load().model_parallel_size:
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
