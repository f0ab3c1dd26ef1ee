"""Parts of a step's time: a roofline for each operation, messages by their links, the pipeline's schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pretrain.plugins.backend import Figures
    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout
    from pretrain.tools.plan.device import Efficiencies, PlanDevice
    from pretrain.tools.plan.stage_plan import Costs, Message, Operation


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
class _PassTime:
    """Forward and backward pass of one micro-batch in one stage: seconds of computing, and of waiting for messages."""

    computing: float
    waiting: float

    @property
    def seconds(self) -> float:
        return self.computing + self.waiting

    def scaled(self, factor: float) -> _PassTime:
        return _PassTime(self.computing * factor, self.waiting * factor)


def step_parts(
    recipe: Recipe, device: PlanDevice, layout: Layout, costs: Mapping[int, Costs], efficiencies: Efficiencies
) -> StepParts:
    """Return the parts of a step.

    The slowest stage is busy with all micro-batches; before and after them it waits for one pass through the other
    stages, or a v-th of it under the interleaved schedule with v chunks (Narayanan et al. 2021, arXiv:2104.04473,
    section 2.2).

    Args:
        recipe: what is planned.
        device: with a peak and a memory bandwidth.
        layout: of the ranks.
        costs: of the stages that are known, by their number; the others take the time of the one before, by layers.
        efficiencies: shares of the figures that are reached.
    """
    roofline = Roofline(device.peak_flops or math.inf, device.figures.memory_bandwidth or math.inf, efficiencies)
    links = RankLinks(device.figures, layout, efficiencies.links)
    known = {stage: _pass(recipe, each, roofline, links) for stage, each in costs.items()}
    passes = _all_stages(layout, known)
    slowest = max(passes, key=lambda each: each.seconds)
    micro_batches = layout.num_microbatches(recipe.train.global_batch_size)
    chunks = layout.virtual_pipeline_model_parallel_size or 1
    others = math.fsum(each.seconds for each in passes) - slowest.seconds
    ends = (_end(recipe, each, roofline, links, known[stage]) for stage, each in costs.items())
    update, waiting = max(ends, key=sum)
    return StepParts(
        computing=slowest.computing * micro_batches,
        bubble=others / chunks,
        communication=slowest.waiting * micro_batches + waiting,
        update=update,
    )


def _pass(recipe: Recipe, costs: Costs, roofline: Roofline, links: RankLinks) -> _PassTime:
    backward = roofline.seconds(costs.backward)
    waiting = links.seconds(costs.messages, lambda each: not each.overlaps and not _is_between_stages(each))
    hidden = links.seconds(costs.messages, lambda each: each.overlaps and not _is_between_stages(each))
    waiting += max(0.0, hidden - HIDING * backward)
    parallel = recipe.parallel
    # Under the interleaved schedule alone, stages compute while they send and receive.
    if parallel.virtual_pipeline_model_parallel_size is None or parallel.overlap_p2p_comm is False:
        waiting += links.seconds(costs.messages, _is_between_stages)
    return _PassTime(roofline.seconds(costs.forward) + backward, waiting)


def _end(
    recipe: Recipe, costs: Costs, roofline: Roofline, links: RankLinks, one_pass: _PassTime
) -> tuple[float, float]:
    """Return the seconds of the update, and of waiting for the messages that come once a step.

    Messages that overlap are hidden behind one micro-batch, but for the last one, which nothing is left to hide.
    """
    once = costs.messages_once
    hidden = links.seconds(once, lambda each: each.overlaps)
    last = hidden / max(1.0, math.fsum(count for message, count in once.items() if message.overlaps))
    waiting = links.seconds(once, lambda each: not each.overlaps) + max(hidden - one_pass.computing, last)
    is_offloaded = recipe.engine.zero.offload_optimizer.device != "none"
    return 0.0 if is_offloaded else roofline.seconds(costs.once), waiting


def _all_stages(layout: Layout, traced: Mapping[int, _PassTime]) -> list[_PassTime]:
    """Return the passes of all stages."""
    size = layout.pipeline_model_parallel_size
    layers = [sum(layout.layers_of_chunks[stage::size]) for stage in range(size)]
    passes = []
    for stage in range(size):
        like = max(number for number in traced if number <= stage)
        passes.append(traced[like].scaled(layers[stage] / layers[like]) if like != stage else traced[like])
    return passes


def _is_between_stages(message: Message) -> bool:
    return message.kind in {"send", "receive"}


_ROUNDS = {"all-reduce": 2.0, "all-gather": 1.0, "reduce-scatter": 1.0, "all-to-all": 1.0}
"""Rounds of n - 1 sends of an n-th of the tensor in a ring of n (Patarasuk and Yuan 2009,
doi:10.1016/j.jpdc.2008.09.002); others pass the whole tensor on."""


@dataclass(frozen=True, slots=True)
class RankLinks:
    """Links of a layout's ranks, which are numbered tensor first, then data, then pipeline, and fill nodes in order.

    Attributes:
        figures: of the device.
        layout: of the ranks.
        efficiency: share of the bandwidth that is reached.
    """

    figures: Figures
    layout: Layout
    efficiency: float

    def seconds(
        self,
        messages: Mapping[Message, float],
        chosen: Callable[[Message], bool] = lambda message: True,  # noqa: ARG005
    ) -> float:
        """Return the time of the chosen messages, one after another; those over links of unknown speed take none."""
        return math.fsum(self._of_one(message) * count for message, count in messages.items() if chosen(message))

    def unknown(self, messages: Iterable[Message]) -> list[str]:
        """Return the links of unknown speed that messages pass: "inside a node", "between nodes"."""
        unknown = [message for message in messages if self._bandwidth(message) is None]
        inside = {self._ranks_in_node(message) >= message.size for message in unknown}
        return [name for is_inside, name in ((True, "inside a node"), (False, "between nodes")) if is_inside in inside]

    def _of_one(self, message: Message) -> float:
        bandwidth = self._bandwidth(message)
        if bandwidth is None or message.kind == "send":  # the other side's "receive" is the same message
            return 0.0
        return _traffic(message) / (bandwidth * self.efficiency)

    def _bandwidth(self, message: Message) -> float | None:
        """Return the bytes/s of one rank in a ring over the group.

        Every device has a port to other nodes: a group with several ranks in a node uses the ports of all of them.
        """
        ranks = self._ranks_in_node(message)
        link, port = self.figures.link_bandwidth, self.figures.node_bandwidth
        if ranks >= message.size:
            return link
        if port is None:
            return None
        return port * ranks if link is None else min(port * ranks, link)

    def _ranks_in_node(self, message: Message) -> int:
        """Return the ranks of a group that are in one node."""
        node = self.figures.devices_per_node or self.layout.world_size
        if self.layout.world_size <= node:
            return message.size
        tensor, data = self.layout.tensor_model_parallel_size, self.layout.data_parallel_size
        if message.group == "tensor":
            return min(tensor, node)
        if message.group == "data":
            return max(1, min(data, node // tensor))
        return 1


def _traffic(message: Message) -> float:
    """Return the bytes that a rank sends."""
    rounds = _ROUNDS.get(message.kind)
    return message.moved * (1.0 if rounds is None else rounds * (message.size - 1) / message.size)


@dataclass(frozen=True, slots=True)
class Roofline:
    """Speed of a device at given efficiencies (Williams et al. 2009, doi:10.1145/1498765.1498785).

    Attributes:
        peak_flops: FLOP/s of matmuls in the recipe's dtype, which are taken for those in fp32 too.
        memory_bandwidth: bytes/s.
        efficiencies: shares of both that are reached.
    """

    peak_flops: float
    memory_bandwidth: float
    efficiencies: Efficiencies

    def seconds(self, operations: Mapping[Operation, float]) -> float:
        """Return the time of operations, one after another."""
        return math.fsum(self._of_one(operation) * count for operation, count in operations.items())

    def _of_one(self, operation: Operation) -> float:
        computing = operation.flops / (self.peak_flops * self.efficiencies.matmul)
        moving = operation.moved / (self.memory_bandwidth * self.efficiencies.memory)
        return max(computing, moving)
