"""Calibrates a plan by a run on the same device (`--measured`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from pretrain.errors import RunError
from pretrain.recipe import load_recipe
from pretrain.report.run_page import read_runs
from pretrain.tools.plan.device import MIDDLE, ReachedShares, find_device
from pretrain.tools.plan.plan import make_plan
from pretrain.tools.plan.wording import figure

if TYPE_CHECKING:
    from pathlib import Path

    from pretrain.recipe import Recipe
    from pretrain.tools.plan.device import DeviceOptions, PlanDevice

LEAST = 3
"""Logged intervals that are needed; the first includes the start-up and is skipped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRun:
    """Run whose speed is known.

    Attributes:
        path: of its directory.
        recipe: that it trained.
        device: product name, the same on all ranks.
        ranks: their number.
        seconds: median of an iteration with the recipe's whole batch.
    """

    path: Path
    recipe: Recipe
    device: str
    ranks: int
    seconds: float


def read_measured(path: Path) -> MeasuredRun:
    """Read what a run has logged since its last start with another recipe, layout or devices.

    Raises:
        RunError: it is no run directory, too few intervals are logged, or its devices are not known or differ.
        RecipeError: its recipe cannot be read.
    """
    (run,) = read_runs([path])
    recipe = load_recipe(path / "recipe.yml")
    begin = run.environment.get("started_after", 0)
    last = [line for line in run.train if line["iteration"] > begin]
    whole = [line for line in last[1:] if line.get("global_batch_size") == recipe.train.global_batch_size]
    seconds = [line["seconds_per_iteration"] for line in whole if line.get("seconds_per_iteration")]
    if len(seconds) < LEAST - 1:
        batch = f"train.global_batch_size {recipe.train.global_batch_size}"
        batch += f" since it was resumed after iteration {begin}, changed" if begin else ""
        msg = (
            f"{path} has too few logged intervals with {batch}: "
            f"{len(seconds)} without the first, which includes the start-up.\n"
            f"Train until it has logged {LEAST} (logging.log_interval)."
        )
        raise RunError(msg)
    devices = run.environment.get("devices") or []
    if len(set(devices)) != 1:
        found = ", ".join(sorted(set(devices))) or "none"
        msg = f"{path / 'environment.json'} must name one kind of device, not: {found}.\nGive a run on this device."
        raise RunError(msg)
    return MeasuredRun(path=path, recipe=recipe, device=devices[0], ranks=len(devices), seconds=median(seconds))


def calibrated(device: PlanDevice, wanted: DeviceOptions, run: MeasuredRun, vocab_size: int) -> PlanDevice:
    """Return the device with the shares that the run reached instead of the assumed range.

    The run is planned as any recipe, with the middles of the assumed shares. One number an iteration tells one factor:
    all three shares are multiplied by the planned time / the measured one.

    Raises:
        RunError: the run was on another device, or no time can be planned for it.
        PretrainError: as `make_plan`.
    """
    if not run.device.endswith(device.name):  # drivers put the maker before it
        msg = (
            f"{run.path} trained on {run.device}; this plan is for {device.name}.\n"
            "Give a run on the planned device, or leave out --measured."
        )
        raise RunError(msg)
    middle = replace(find_device(run.recipe, wanted, ranks=run.ranks), reached=ReachedShares(MIDDLE, MIDDLE))
    time = make_plan(run.recipe, middle, devices=run.ranks, vocab_size=vocab_size).time
    if time is None:
        msg = f"{device.name}: the step time cannot be planned, so a run cannot calibrate it.\nLeave out --measured."
        raise RunError(msg)
    reached = MIDDLE.times(time.seconds.mean / run.seconds)
    text = f"{run.path} ({figure(run.seconds)} s an iteration on {run.ranks} device{'s' * (run.ranks > 1)})"
    return replace(device, reached=ReachedShares(reached, reached, text))
