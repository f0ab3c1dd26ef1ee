"""Memory and time of a choice, about: a filter before full plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.plan.search.choice_costs import stage_costs
from pretrain.tools.plan.search.choice_memory import stage_load, stage_peak
from pretrain.tools.plan.stage_plan import StagePlan
from pretrain.tools.plan.time.step_parts import step_parts
from pretrain.tools.plan.time.step_time import Range

if TYPE_CHECKING:
    from pretrain.recipe import Recipe
    from pretrain.tools.plan.device import PlanDevice
    from pretrain.tools.plan.search.choice_memory import StageLoad
    from pretrain.tools.plan.search.choices import Choice
    from pretrain.tools.plan.search.pieces import Pieces


def _loads(recipe: Recipe, choice: Choice, pieces: Pieces) -> dict[int, StageLoad]:
    """Return the loads of the stages that differ; between them they fall from the second on."""
    layout = choice.layout(recipe)
    micro_batches = layout.num_microbatches(recipe.train.global_batch_size)
    is_uneven = len(set(layout.layers_of_chunks)) > 1
    last = choice.pipeline - 1
    stages = range(choice.pipeline) if is_uneven else sorted({0, min(1, last), last})
    return {stage: stage_load(layout, pieces, stage, micro_batches) for stage in stages}


def layout_peak(recipe: Recipe, device: PlanDevice, choice: Choice, pieces: Pieces) -> int:
    """Return about the memory that the fullest stage of a layout takes; within a tenth of that of a full plan.

    Args:
        recipe: what is planned.
        device: with what context and process groups take.
        choice: of the layout.
        pieces: of the model, for its tensor-parallel size.
    """
    groups = device.group_bytes(choice.layout(recipe))
    return max(stage_peak(recipe, choice, pieces, load, groups) for load in _loads(recipe, choice, pieces).values())


def estimated_seconds(chosen: Recipe, device: PlanDevice, choice: Choice, pieces: Pieces) -> Range | None:
    """Return the time of a step; None if the device's peak or its memory's bandwidth is not known.

    Args:
        chosen: recipe with the choice.
        device: with its figures.
        choice: of the layout.
        pieces: of the model, for its tensor-parallel size.
    """
    if device.peak_flops is None or device.figures.memory_bandwidth is None:
        return None
    stages = [_stage(chosen, choice, pieces, stage, load) for stage, load in _loads(chosen, choice, pieces).items()]
    layout, reached = choice.layout(chosen), device.reached
    best, worst = (step_parts(chosen, device, layout, stages, each).seconds for each in (reached.best, reached.worst))
    return Range(best, worst)


def _stage(chosen: Recipe, choice: Choice, pieces: Pieces, stage: int, load: StageLoad) -> StagePlan:
    return StagePlan(
        stage=stage,
        rank=stage * choice.tensor * choice.data,
        layers=str(load.layers),
        parameters=load.parameters,
        parts={},
        host_bytes=0,
        peak_at="",
        micro_batches=0,
        course=(),
        modules=(),
        costs=stage_costs(chosen, choice, pieces, load),
    )
