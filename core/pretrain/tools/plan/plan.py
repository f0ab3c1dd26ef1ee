"""Plans a training: memory and time on devices that need not be present."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from pretrain.errors import RunError
from pretrain.recipe import load_recipe
from pretrain.recipe.layout import lay_out
from pretrain.recipe.sections.engine import OffloadOptimizerSection, OffloadParamSection
from pretrain.report.run_page import read_runs
from pretrain.tools.plan.device import MIDDLE, ReachedShares, find_device
from pretrain.tools.plan.step_time import figure, step_time
from pretrain.tools.plan.trace.stage_tracing import TraceSubject, trace_stages

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pretrain.plugins.negotiation.kernel_table import KernelTable
    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout
    from pretrain.tools.plan.device import DeviceOptions, PlanDevice
    from pretrain.tools.plan.run_costs import RunCosts
    from pretrain.tools.plan.stage_plan import StagePlan
    from pretrain.tools.plan.step_time import StepTime


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Plan of a training."""

    recipe: Recipe
    device: PlanDevice
    layout: Layout
    vocab_size: int  # entries of the tokenizer, before padding
    stages: Sequence[StagePlan]
    kernels: KernelTable
    time: StepTime | None  # of a step; None where the device's figures are not known
    notices: Sequence[str]
    # Where the recipe does not fit on one replica's devices, the least number on which it does; None: unknown
    enough_devices: int | None = None
    costs: RunCosts | None = None  # besides the steps; None where nothing is said of storage and failures

    @property
    def peak_bytes(self) -> int:
        """Bytes of the device's memory that the fullest stage takes."""
        return max(stage.peak_bytes for stage in self.stages)

    @property
    def fits(self) -> bool | None:
        """True if every stage fits into the device's memory; None if that is not known."""
        return None if self.device.memory is None else self.peak_bytes <= self.device.memory


def make_plan(recipe: Recipe, device: PlanDevice, *, devices: int | None = None, vocab_size: int) -> Plan:
    """Trace the stages of a layout (without `devices`, of one replica), and estimate the step's time."""
    layout = lay_out(recipe, devices or recipe.least_ranks)
    traceable, notices = without_files(recipe)
    traced = trace_stages(TraceSubject(recipe=traceable, device=device, layout=layout, vocab_size=vocab_size))
    stages = [each.plan for each in traced]
    return Plan(
        recipe=recipe,
        device=device,
        layout=layout,
        vocab_size=vocab_size,
        stages=stages,
        kernels=traced[0].kernels,
        time=step_time(recipe, device, layout, stages),
        notices=list(dict.fromkeys([*notices, *(notice for each in traced for notice in each.notices)])),
    )


def without_files(recipe: Recipe) -> tuple[Recipe, list[str]]:
    """Return the recipe with `device: cpu` instead of `device: nvme`, and a line for the user about each."""
    # On the device nothing changes: weights and gradients come and go in the same pieces. What the screen then shows as
    # host memory is in the files, but for the buffers (`buffer_count`).
    zero = recipe.engine.zero
    changed: dict[str, OffloadOptimizerSection | OffloadParamSection] = {}
    if (given := zero.offload_optimizer).device == "nvme":
        changed["offload_optimizer"] = OffloadOptimizerSection(
            device="cpu", pin_memory=given.pin_memory, cpu_adam=given.cpu_adam
        )
    if zero.offload_param.device == "nvme":
        changed["offload_param"] = OffloadParamSection(device="cpu", pin_memory=zero.offload_param.pin_memory)
    if not changed:
        return recipe, []
    engine = recipe.engine.model_copy(update={"zero": zero.model_copy(update=changed)})
    notices = [
        f"engine.zero.{name}.device: nvme is planned as cpu: apart from buffers, the host memory shown is in the files"
        for name in changed
    ]
    return recipe.model_copy(update={"engine": engine}), notices


LEAST = 3  # logged intervals that are needed; the first includes the start-up and is skipped


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRun:
    """Run whose speed is known."""

    path: Path
    recipe: Recipe
    device: str
    ranks: int
    seconds: float  # median of an iteration with the recipe's whole batch


def read_measured(path: Path) -> MeasuredRun:
    """Read what a run has logged since its last start with another recipe, layout or devices."""
    (run,) = read_runs([path])
    recipe = load_recipe(path / "recipe.yml")
    begin = run.environment.get("started_after", 0)
    last = [line for line in run.train if line["iteration"] > begin]
    whole = [line for line in last[1:] if line.get("global_batch_size") == recipe.train.global_batch_size]
    seconds = [line["seconds_per_iteration"] for line in whole if line.get("seconds_per_iteration")]
    if len(seconds) < LEAST - 1:
        batch = f"train.global_batch_size {recipe.train.global_batch_size}"
        since = f", since it was resumed with changes after iteration {begin}" if begin else ""
        msg = (
            f"{path} has too few logged intervals with {batch}: {len(seconds)}{since}; the first one, with the "
            f"start-up, does not count.\nTrain until it has logged {LEAST} (logging.log_interval)."
        )
        raise RunError(msg)
    devices = run.environment.get("devices") or []
    if len(set(devices)) != 1:
        found = ", ".join(sorted(set(devices))) or "none"
        msg = f"{path / 'environment.json'} must name one kind of device, not: {found}.\nGive a run on such devices."
        raise RunError(msg)
    return MeasuredRun(path=path, recipe=recipe, device=devices[0], ranks=len(devices), seconds=median(seconds))


def calibrated(device: PlanDevice, wanted: DeviceOptions, run: MeasuredRun, vocab_size: int) -> PlanDevice:
    """Return the device with the shares that the run reached instead of the assumed range."""
    # The run is planned as any recipe, with the middles of the assumed shares. One number an iteration tells one
    # factor: all three shares are multiplied by the planned time / the measured one.
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
