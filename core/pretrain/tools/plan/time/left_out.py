"""Omissions of an estimated step time, as lines for the user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.plan.time.links import Links

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout
    from pretrain.tools.plan.device import PlanDevice
    from pretrain.tools.plan.stage_plan import StagePlan


_OPTIONS = {"inside a node": "--link", "between nodes": "--network"}


def unknown_links(device: PlanDevice, layout: Layout, stages: Sequence[StagePlan]) -> list[str]:
    """Return a line for each kind of link of unknown speed that messages pass.

    Args:
        device: with its figures.
        layout: of the ranks.
        stages: those that were traced.
    """
    links = Links(device.figures, layout, 1.0)
    messages = [message for stage in stages for message in (*stage.costs.messages, *stage.costs.messages_once)]
    return [
        f"messages {where} count nothing: their speed is not known for {device.name}; {_OPTIONS[where]} gives it"
        for where in links.unknown(messages)
    ]


def left_out(recipe: Recipe) -> list[str]:
    """Return what the estimate of a step does not count in any case."""
    lines = ["launches of kernels, loading of data, evaluation and checkpoints"]
    zero = recipe.engine.zero
    if zero.offload_optimizer.device != "none":
        lines.append("the optimizer's step on the host, and its copies from and to the host, whose link is not known")
    if zero.offload_param.device != "none":
        lines.append("copies of weights from the host, whose link is not known")
    if recipe.train.rampup_batch_size is not None:
        lines.append("smaller batches while train.rampup_batch_size grows them")
    return lines
