"""Parts of a step's time at given efficiencies: micro-batches, waiting for other stages and for messages, update."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.tools.plan.time.links import Links
from pretrain.tools.plan.time.roofline import Roofline

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout
    from pretrain.tools.plan.costs import Message
    from pretrain.tools.plan.device import PlanDevice
    from pretrain.tools.plan.efficiencies import Efficiencies
    from pretrain.tools.plan.stage_plan import StagePlan

HIDING = 1 / 3
"""Share of a backward pass behind which messages between tensor-parallel ranks are hidden: while the gradient of the
input of QKV and of the MLP's first matmul is summed, that of their weights is computed, 7/12 of the matmuls of
half the backward pass (LinearWithGradAccumulationAndAsyncCommunication, megatron-core's tensor_parallel/layers.py)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepParts:
    """Seconds of a step, whose sum is the step's.

    Attributes:
        computing: of the slowest stage's micro-batches.
        bubble: of waiting for other stages, when the pipeline fills and empties.
        communication: of waiting for messages, those of the update too.
        update: of the optimizer, and whatever else comes once a step.
    """

    computing: float
    bubble: float
    communication: float
    update: float

    @property
    def seconds(self) -> float:
        """Time of the step."""
        return self.computing + self.bubble + self.communication + self.update


@dataclass(frozen=True, slots=True)
class _Pass:
    """Forward and backward pass of one micro-batch in one stage: seconds of computing, and of waiting for messages."""

    computing: float
    waiting: float

    @property
    def seconds(self) -> float:
        return self.computing + self.waiting

    def scaled(self, factor: float) -> _Pass:
        return _Pass(self.computing * factor, self.waiting * factor)


def step_parts(
    recipe: Recipe, device: PlanDevice, layout: Layout, stages: Sequence[StagePlan], efficiencies: Efficiencies
) -> StepParts:
    """Return the parts of a step.

    The slowest stage is busy with all micro-batches; before and after them it waits for one pass through the other
    stages, or a v-th of it under the interleaved schedule with v chunks (Narayanan et al. 2021, arXiv:2104.04473,
    section 2.2).

    Args:
        recipe: what is planned.
        device: with a peak and a memory bandwidth.
        layout: of the ranks.
        stages: those that were traced, in order; stages between them take the time of the one before, by layers.
        efficiencies: shares of the figures that are reached.
    """
    roofline = Roofline(device.peak_flops or math.inf, device.figures.memory_bandwidth or math.inf, efficiencies)
    links = Links(device.figures, layout, efficiencies.links)
    traced = {stage.stage: _pass(recipe, stage, roofline, links) for stage in stages}
    passes = _all_stages(layout, traced)
    slowest = max(passes, key=lambda each: each.seconds)
    micro_batches = layout.num_microbatches(recipe.train.global_batch_size)
    chunks = layout.virtual_pipeline_model_parallel_size or 1
    others = math.fsum(each.seconds for each in passes) - slowest.seconds
    ends = [_end(recipe, stage, roofline, links, traced[stage.stage]) for stage in stages]
    update, waiting = max(ends, key=sum)
    return StepParts(
        computing=slowest.computing * micro_batches,
        bubble=others / chunks,
        communication=slowest.waiting * micro_batches + waiting,
        update=update,
    )


def _pass(recipe: Recipe, stage: StagePlan, roofline: Roofline, links: Links) -> _Pass:
    backward = roofline.seconds(stage.costs.backward)
    messages = stage.costs.messages
    waiting = links.seconds(_chosen(messages, overlaps=False, between_stages=False))
    hidden = links.seconds(_chosen(messages, overlaps=True, between_stages=False))
    waiting += max(0.0, hidden - HIDING * backward)
    if not _overlaps_stages(recipe):
        waiting += links.seconds({message: n for message, n in messages.items() if _is_between_stages(message)})
    return _Pass(roofline.seconds(stage.costs.forward) + backward, waiting)


def _end(recipe: Recipe, stage: StagePlan, roofline: Roofline, links: Links, one_pass: _Pass) -> tuple[float, float]:
    """Return the seconds of the update, and of waiting for the messages that come once a step.

    Messages that overlap are hidden behind one micro-batch, but for the last one, which nothing is left to hide.
    """
    once = stage.costs.messages_once
    waiting = links.seconds({message: n for message, n in once.items() if not message.overlaps})
    behind = {message: n for message, n in once.items() if message.overlaps}
    hidden = links.seconds(behind)
    last = hidden / max(1.0, math.fsum(behind.values()))
    waiting += max(hidden - one_pass.computing, last)
    is_offloaded = recipe.engine.zero.offload_optimizer.device != "none"
    return 0.0 if is_offloaded else roofline.seconds(stage.costs.once), waiting


def _all_stages(layout: Layout, traced: Mapping[int, _Pass]) -> list[_Pass]:
    """Return the passes of all stages."""
    size = layout.pipeline_model_parallel_size
    layers = [sum(layout.layers_of_chunks[stage::size]) for stage in range(size)]
    passes = []
    for stage in range(size):
        like = max(number for number in traced if number <= stage)
        passes.append(traced[like].scaled(layers[stage] / layers[like]) if like != stage else traced[like])
    return passes


def _overlaps_stages(recipe: Recipe) -> bool:
    """Return whether stages compute while they send and receive: under the interleaved schedule alone."""
    parallel = recipe.parallel
    return parallel.virtual_pipeline_model_parallel_size is not None and parallel.overlap_p2p_comm is not False


def _is_between_stages(message: Message) -> bool:
    return message.kind in {"send", "receive"}


def _chosen(messages: Mapping[Message, float], *, overlaps: bool, between_stages: bool) -> dict[Message, float]:
    return {
        message: count
        for message, count in messages.items()
        if message.overlaps == overlaps and _is_between_stages(message) == between_stages
    }
