"""Estimates the time of a step and of the training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.report.flops import flops_per_sequence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pretrain.plugins.backend import Figures
    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout
    from pretrain.tools.plan.device import Efficiencies, PlanDevice
    from pretrain.tools.plan.stage_plan import Costs, Message, Operation, StagePlan

DIGITS = 3  # significant digits of an estimate
HIDING = 1 / 3
"""Share of a backward pass behind which messages between tensor-parallel ranks are hidden: while the gradient of the
input of QKV and of the MLP's first matmul is summed, that of their weights is computed, 7/12 of the matmuls of
half the backward pass (LinearWithGradAccumulationAndAsyncCommunication, megatron-core's tensor_parallel/layers.py)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepParts:
    """Seconds of a step, whose sum is the step's."""

    computing: float
    bubble: float  # of waiting for other stages, when the pipeline fills and empties
    communication: float  # of waiting for messages, those of the update too
    update: float  # of the optimizer, and whatever else comes once a step

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
    """Return the parts of a step; stages without costs take the time of the one before, by layers."""
    # The slowest stage is busy with all micro-batches; before and after them it waits for one pass through the other
    # stages, or a v-th of it under the interleaved schedule with v chunks (Narayanan et al. 2021, arXiv:2104.04473,
    # section 2.2).
    roofline = Roofline(
        peak_flops=device.peak_flops or math.inf,
        peak_flops_fp32=device.peak_flops_fp32 or device.peak_flops or math.inf,
        peak_flops_fp8=device.peak_flops_fp8 or device.peak_flops or math.inf,
        memory_bandwidth=device.figures.memory_bandwidth or math.inf,
        efficiencies=efficiencies,
    )
    links = RankLinks(device.figures, layout, efficiencies.links)
    known = {stage: _pass(recipe, each, roofline, links) for stage, each in costs.items()}
    layers = layout.layers_of_stages
    passes = []
    for stage in range(len(layers)):
        like = max(number for number in known if number <= stage)
        passes.append(known[like].scaled(layers[stage] / layers[like]))
    slowest = max(passes, key=lambda each: each.seconds)
    micro_batches = layout.num_microbatches(recipe.train.global_batch_size)
    others = math.fsum(each.seconds for each in passes) - slowest.seconds
    update, waiting = max((_end(recipe, each, roofline, links, known[at]) for at, each in costs.items()), key=sum)
    return StepParts(
        computing=slowest.computing * micro_batches,
        bubble=others / (layout.virtual_pipeline_model_parallel_size or 1),
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


def _end(recipe: Recipe, costs: Costs, roofline: Roofline, links: RankLinks, passing: _PassTime) -> tuple[float, float]:
    """Return the seconds of the update, and of waiting for the messages that come once a step."""
    # Messages that overlap are hidden behind one micro-batch, but for the last one, which nothing is left to hide.
    once = costs.messages_once
    hidden = links.seconds(once, lambda each: each.overlaps)
    last = hidden / max(1.0, math.fsum(count for message, count in once.items() if message.overlaps))
    waiting = links.seconds(once, lambda each: not each.overlaps) + max(hidden - passing.computing, last)
    is_offloaded = recipe.engine.zero.offload_optimizer.device != "none"
    return 0.0 if is_offloaded else roofline.seconds(costs.once), waiting


def _is_between_stages(message: Message) -> bool:
    return message.kind in {"send", "receive"}


_ROUNDS = {"all-reduce": 2.0, "all-gather": 1.0, "reduce-scatter": 1.0, "all-to-all": 1.0}
"""Rounds of n - 1 sends of an n-th of the tensor in a ring of n (Patarasuk and Yuan 2009,
doi:10.1016/j.jpdc.2008.09.002); others pass the whole tensor on."""


@dataclass(frozen=True, slots=True)
class RankLinks:
    """Links of a layout's ranks, which are numbered tensor first, then data, then pipeline, and fill nodes in order.

    Neighbours of one stage share the experts.
    """

    figures: Figures
    layout: Layout
    efficiency: float  # share of the bandwidth that is reached

    def seconds(self, messages: Mapping[Message, float], chosen: Callable[[Message], bool] | None = None) -> float:
        """Return the time of the chosen messages, one after another; those over links of unknown speed take none."""
        wanted = {message: count for message, count in messages.items() if chosen is None or chosen(message)}
        return math.fsum(self._of_one(message) * count for message, count in wanted.items())

    def unknown(self, messages: Iterable[Message]) -> list[str]:
        """Return the links of unknown speed that messages pass: "inside a node", "between nodes"."""
        unknown = [message for message in messages if self._bandwidth(message) is None]
        inside = {self._ranks_in_node(message) >= message.size for message in unknown}
        return [name for is_inside, name in ((True, "inside a node"), (False, "between nodes")) if is_inside in inside]

    def _of_one(self, message: Message) -> float:
        bandwidth = self._bandwidth(message)
        if bandwidth is None or message.kind == "send":  # the other side's "receive" is the same message
            return 0.0
        rounds = _ROUNDS.get(message.kind)
        sent = message.moved * (1.0 if rounds is None else rounds * (message.size - 1) / message.size)
        return sent / (bandwidth * self.efficiency)

    def _bandwidth(self, message: Message) -> float | None:
        """Return the bytes/s of one rank in a ring over the group."""
        ranks = self._ranks_in_node(message)
        link, port = self.figures.link_bandwidth, self.figures.node_bandwidth
        if ranks >= message.size:
            return link
        if port is None:
            return None
        if message.kind == "all-to-all":  # no ring: what a rank sends to other nodes leaves by its own port
            port *= (message.size - 1) / (message.size - ranks)
            return port if link is None else min(port, link)
        # Every device has a port to other nodes: a group with several ranks in a node uses the ports of all of them.
        return port * ranks if link is None else min(port * ranks, link)

    def _ranks_in_node(self, message: Message) -> int:
        node = self.figures.devices_per_node or self.layout.world_size
        if self.layout.world_size <= node:
            return message.size
        layout, tensor = self.layout, self.layout.tensor_model_parallel_size
        match message.group:
            case "tensor" | "tensor and context" | "experts":  # neighbours
                ranks = min(message.size, node)
            case "context":
                ranks = min(layout.context_parallel_size, node // tensor)
            case "data":
                ranks = min(layout.replicas, node // tensor)
            case "expert data":
                ranks = min(layout.expert_data_parallel_size, node // layout.ranks_of_experts)
            case "pipeline" | "model" | "world":
                ranks = 1
            case group:
                msg = f"no links are known of messages between ranks of {group!r}"
                raise NotImplementedError(msg)
        return max(1, ranks)


@dataclass(frozen=True, slots=True)
class Roofline:
    """Speed of a device at given efficiencies (Williams et al. 2009, doi:10.1145/1498765.1498785)."""

    peak_flops: float  # FLOP/s of matmuls in the recipe's dtype
    peak_flops_fp32: float  # of those in fp32: a router's, and Muon's iteration
    peak_flops_fp8: float  # of those whose kernel multiplies in fp8
    memory_bandwidth: float  # bytes/s
    efficiencies: Efficiencies  # shares of both that are reached

    def seconds(self, operations: Mapping[Operation, float]) -> float:
        """Return the time of operations, one after another."""
        return math.fsum(self._of_one(operation) * count for operation, count in operations.items())

    def _of_one(self, operation: Operation) -> float:
        peak = {"fp32": self.peak_flops_fp32, "fp8": self.peak_flops_fp8}.get(operation.dtype, self.peak_flops)
        computing = operation.flops / (peak * self.efficiencies.matmul)
        moving = operation.moved / (self.memory_bandwidth * self.efficiencies.memory)
        return max(computing, moving)


DAY = 24 * 60 * 60  # seconds


@dataclass(frozen=True, slots=True)
class Range:
    """Range of an estimate."""

    low: float
    high: float

    def times(self, factor: float) -> Range:
        """Return the range of a multiple."""
        return Range(self.low * factor, self.high * factor)

    def under(self, amount: float) -> Range:
        """Return the range of an amount divided by this: "tokens" under seconds."""
        return Range(amount / self.high, amount / self.low)

    @property
    def mean(self) -> float:
        """Middle of the range."""
        return (self.low + self.high) / 2


def figure(value: float) -> str:
    """Return a number with `DIGITS` significant digits and no exponent: "63,400", "4.51", "0.00712"."""
    if value == 0:
        return "0"
    decimals = DIGITS - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, decimals)
    return f"{rounded:,.{max(0, decimals)}f}"


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """Estimated time of a step; shares are those of the middle of the range."""

    seconds: Range  # of a step; low with `best` efficiencies, high with `worst`
    tokens_per_second: Range
    flops_per_second: Range  # model FLOP/s of one device, by `pretrain.report.flops`; recompute is not counted
    peak_share: Range  # model FLOP/s in the device's peak of `precision.dtype`, as MFU is, 0 to 1 and in fp8 more
    days: Range | None  # of the recipe's whole training; None if the recipe does not say its length
    device_hours: Range | None  # of the recipe's whole training, all devices together; None as above
    tokens: int | None  # of the recipe's whole training; None as above
    bubble: float  # share of the step in which a stage waits for others, 0 to 1
    communication: float  # share of the step in which a device waits for messages, 0 to 1
    update: float  # share of the optimizer's update, 0 to 1, with what is left of its messages
    best: Efficiencies  # efficiencies of the low end of `seconds`
    worst: Efficiencies
    measured_in: str  # run that reached these efficiencies, which are equal then; "" where they are assumed
    unknown_links: Sequence[str]  # lines about messages that count nothing, since the speed of their links is not known
    left_out: Sequence[str]  # lines about what else the estimate does not count


def step_time(recipe: Recipe, device: PlanDevice, layout: Layout, stages: Sequence[StagePlan]) -> StepTime | None:
    """Estimate the time of a step; None if the device's peak or its memory's bandwidth is not known."""
    if device.peak_flops is None or device.figures.memory_bandwidth is None:
        return None
    reached = device.reached
    costs = {stage.stage: stage.costs for stage in stages}
    best, worst = (step_parts(recipe, device, layout, costs, each) for each in (reached.best, reached.worst))
    seconds = Range(best.seconds, worst.seconds)
    train, model = recipe.train, recipe.model
    samples = train.global_batch_size / layout.world_size
    # The rows of the embedding over all ranks, from the first stage's parameters.
    of_words = sum(row.parameters for row in stages[0].modules if row.name.endswith("word_embeddings"))
    vocabulary = of_words * recipe.parallel.tensor_model_parallel_size // model.hidden_size
    flops = samples * flops_per_sequence(model, vocabulary)
    steps = train.train_iters if train.train_samples is None else train.train_samples / train.global_batch_size
    days = None if steps is None else seconds.times(steps / DAY)
    return StepTime(
        seconds=seconds,
        tokens_per_second=seconds.under(samples * model.seq_length),
        flops_per_second=seconds.under(flops),
        peak_share=seconds.under(flops / device.peak_flops),
        days=days,
        device_hours=days and days.times(24 * layout.world_size),
        tokens=None if steps is None else round(steps * train.global_batch_size * model.seq_length),
        bubble=(best.bubble + worst.bubble) / 2 / seconds.mean,
        communication=(best.communication + worst.communication) / 2 / seconds.mean,
        update=(best.update + worst.update) / 2 / seconds.mean,
        best=reached.best,
        worst=reached.worst,
        measured_in=reached.measured_in,
        unknown_links=_unknown_links(device, layout, stages),
        left_out=_left_out(recipe, device),
    )


_OPTIONS = {"inside a node": "--link", "between nodes": "--network"}


def _unknown_links(device: PlanDevice, layout: Layout, stages: Sequence[StagePlan]) -> list[str]:
    messages = [message for stage in stages for message in (*stage.costs.messages, *stage.costs.messages_once)]
    return [
        f"messages {where} count as 0: their speed is unknown for {device.name}; set it with {_OPTIONS[where]}"
        for where in RankLinks(device.figures, layout, 1.0).unknown(messages)
    ]


def _left_out(recipe: Recipe, device: PlanDevice) -> list[str]:
    lines = ["kernel launches, data loading, evaluation and checkpoints"]
    if recipe.optimizer.name == "muon" and recipe.precision.dtype != "fp32" and device.peak_flops_fp32 is None:
        lines.append(f"that Muon's matmuls are in fp32: their speed is unknown, they count as {recipe.precision.dtype}")
    zero = recipe.engine.zero
    if zero.offload_optimizer.device != "none":
        lines.append("the optimizer's step on the host, and its copies: the speed of the host's link is unknown")
    if zero.offload_param.device != "none":
        lines.append("copies of weights from the host: the speed of its link is unknown")
    if recipe.train.rampup_batch_size is not None:
        lines.append("smaller batches while train.rampup_batch_size grows them")
    return lines
