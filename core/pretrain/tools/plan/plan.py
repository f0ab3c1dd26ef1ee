"""Plans a training: memory and time on devices that need not be here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pretrain.recipe.layout import lay_out
from pretrain.recipe.sections.engine import OffloadOptimizerSection, OffloadParamSection
from pretrain.tools.plan.step_time import step_time
from pretrain.tools.plan.trace.stage_tracing import TraceSubject, trace_stages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.plugins.negotiation.kernel_table import KernelTable
    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout
    from pretrain.tools.plan.device import PlanDevice
    from pretrain.tools.plan.stage_plan import StagePlan
    from pretrain.tools.plan.step_time import StepTime


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Plan of a training.

    Attributes:
        recipe: what is planned.
        device: on which, with its figures.
        layout: of the ranks.
        vocab_size: entries of the tokenizer, before padding.
        stages: the pipeline stages that differ.
        kernels: the negotiated ones.
        time: of a step; None where the device's figures are not known.
        notices: lines for the user.
        enough_devices: where the recipe does not fit on one replica's devices, the least number on which it does with
            more; None: that was not asked, or is not known.
    """

    recipe: Recipe
    device: PlanDevice
    layout: Layout
    vocab_size: int
    stages: Sequence[StagePlan]
    kernels: KernelTable
    time: StepTime | None
    notices: Sequence[str]
    enough_devices: int | None = None

    @property
    def peak_bytes(self) -> int:
        """Bytes of the device's memory that the fullest stage takes."""
        return max(stage.peak_bytes for stage in self.stages)

    @property
    def fits(self) -> bool | None:
        """True if every stage fits into the device's memory; None if that is not known."""
        return None if self.device.memory is None else self.peak_bytes <= self.device.memory


def make_plan(recipe: Recipe, device: PlanDevice, *, devices: int | None = None, vocab_size: int) -> Plan:
    """Trace the stages of a layout, and estimate the step's time.

    Args:
        recipe: what is planned.
        device: on which, found for the recipe.
        devices: ranks; None: one replica of the model.
        vocab_size: entries of the tokenizer, before padding.

    Raises:
        PretrainError: the layout is not legal, or an operation has no allowed kernel.
    """
    layout = lay_out(recipe, devices or recipe.model_parallel_size)
    traceable, notices = without_files(recipe)
    groups = device.group_bytes(layout)
    memory = None if device.memory is None else device.memory - groups
    traced = trace_stages(TraceSubject.on(device, traceable, layout, vocab_size, memory))
    stages = [replace(each.plan, parts={**each.plan.parts, "process groups": groups}) for each in traced]
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
    """Return the recipe with `device: cpu` instead of `device: nvme`, and a line for the user about each.

    On the device nothing changes: weights and gradients come and go in the same pieces. What the screen then shows as
    host memory is in the files, but for the buffers (`buffer_count`).
    """
    zero = recipe.engine.zero
    changed: dict[str, OffloadOptimizerSection | OffloadParamSection] = {}
    if zero.offload_optimizer.device == "nvme":
        given = zero.offload_optimizer
        changed["offload_optimizer"] = OffloadOptimizerSection(
            device="cpu", pin_memory=given.pin_memory, cpu_adam=given.cpu_adam
        )
    if zero.offload_param.device == "nvme":
        changed["offload_param"] = OffloadParamSection(device="cpu", pin_memory=zero.offload_param.pin_memory)
    if not changed:
        return recipe, []
    engine = recipe.engine.model_copy(update={"zero": zero.model_copy(update=changed)})
    notices = [
        f"engine.zero.{name}.device: nvme is planned as cpu: except for buffers, the host memory shown is in the files"
        for name in changed
    ]
    return recipe.model_copy(update={"engine": engine}), notices
