"""Omissions of an estimated step time, as lines for the user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.plan.time.links import Links

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.plan.device import PlanDevice
    from pretrain.plan.stage_plan import StagePlan
    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout


def left_out(recipe: Recipe, device: PlanDevice, layout: Layout, stages: Sequence[StagePlan]) -> list[str]:
    """Return what the estimate of a step does not count.

    Args:
        recipe: what is planned.
        device: with its figures.
        layout: of the ranks.
        stages: those that were traced.
    """
    lines = ["launches of kernels, loading of data, evaluation and checkpoints"]
    links = Links(device.figures, layout, 1.0)
    if any(links.unknown([*stage.costs.messages, *stage.costs.messages_once]) for stage in stages):
        lines.append(f"messages over links whose speed is not known for {device.name}")
    zero = recipe.engine.zero
    if zero.offload_optimizer.device != "none":
        lines.append("the optimizer's step on the host, and its copies from and to the host, whose link is not known")
    if zero.offload_param.device != "none":
        lines.append("copies of weights from the host, whose link is not known")
    if recipe.train.rampup_batch_size is not None:
        lines.append("smaller batches while train.rampup_batch_size grows them")
    return lines
