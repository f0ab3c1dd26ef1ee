"""Estimates the time of a step and of the training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.report.flops import flops_per_sequence
from pretrain.tools.plan.step_parts import RankLinks, step_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout
    from pretrain.tools.plan.device import Efficiencies, PlanDevice
    from pretrain.tools.plan.stage_plan import StagePlan
    from pretrain.tools.plan.step_parts import StepParts


DAY = 24 * 60 * 60
"""Seconds."""


@dataclass(frozen=True, slots=True)
class Range:
    """Range of an estimate.

    Attributes:
        low: least value.
        high: greatest value.
    """

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


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """Estimated time of a step; shares are those of the middle of the range.

    Attributes:
        seconds: of a step; low with `best` efficiencies, high with `worst`.
        tokens_per_second: of one device.
        flops_per_second: model FLOP/s of one device, by `pretrain.report.flops`; recompute is not counted.
        peak_share: model FLOP/s in the device's peak, 0 to 1.
        days: of the recipe's whole training; None if the recipe does not say its length.
        device_hours: of the recipe's whole training, all devices together; None as above.
        tokens: of the recipe's whole training; None as above.
        bubble: share of the step in which a stage waits for others, 0 to 1.
        communication: share of the step in which a device waits for messages, 0 to 1.
        update: share of the optimizer's update, 0 to 1, with what is left of its messages.
        best: efficiencies of the low end of `seconds`.
        worst: efficiencies of the high end.
        measured_in: run that reached these efficiencies, which are equal then; "" where they are assumed.
        unknown_links: lines about messages that count nothing, since the speed of their links is not known.
        left_out: lines about what else the estimate does not count.
    """

    seconds: Range
    tokens_per_second: Range
    flops_per_second: Range
    peak_share: Range
    days: Range | None
    device_hours: Range | None
    tokens: int | None
    bubble: float
    communication: float
    update: float
    best: Efficiencies
    worst: Efficiencies
    measured_in: str
    unknown_links: Sequence[str]
    left_out: Sequence[str]


def step_time(recipe: Recipe, device: PlanDevice, layout: Layout, stages: Sequence[StagePlan]) -> StepTime | None:
    """Estimate the time of a step.

    Returns:
        the estimate; None if the device's peak or its memory's bandwidth is not known.
    """
    if device.peak_flops is None or device.figures.memory_bandwidth is None:
        return None
    reached = device.reached
    costs = {stage.stage: stage.costs for stage in stages}
    best, worst = (step_parts(recipe, device, layout, costs, each) for each in (reached.best, reached.worst))
    return _result(recipe, device, layout, stages, (best, worst))


def _result(
    recipe: Recipe,
    device: PlanDevice,
    layout: Layout,
    stages: Sequence[StagePlan],
    parts: tuple[StepParts, StepParts],
) -> StepTime:
    best, worst = parts
    seconds = Range(best.seconds, worst.seconds)
    samples, model = recipe.train.global_batch_size / layout.world_size, recipe.model
    flops = samples * flops_per_sequence(model, _vocabulary(recipe, stages[0]))
    steps = _steps(recipe)
    days = None if steps is None else seconds.times(steps / DAY)
    return StepTime(
        seconds=seconds,
        tokens_per_second=seconds.under(samples * model.seq_length),
        flops_per_second=seconds.under(flops),
        peak_share=seconds.under(flops / (device.peak_flops or 1.0)),
        days=days,
        device_hours=days and days.times(24 * layout.world_size),
        tokens=None if steps is None else round(steps * recipe.train.global_batch_size * model.seq_length),
        bubble=(best.bubble + worst.bubble) / 2 / seconds.mean,
        communication=(best.communication + worst.communication) / 2 / seconds.mean,
        update=(best.update + worst.update) / 2 / seconds.mean,
        best=device.reached.best,
        worst=device.reached.worst,
        measured_in=device.reached.measured_in,
        unknown_links=unknown_links(device, layout, stages),
        left_out=left_out(recipe),
    )


def _steps(recipe: Recipe) -> float | None:
    train = recipe.train
    if train.train_samples is not None:
        return train.train_samples / train.global_batch_size
    return train.train_iters


def _vocabulary(recipe: Recipe, first: StagePlan) -> int:
    """Return the rows of the embedding over all ranks, from the first stage's parameters."""
    rows = [row.parameters for row in first.modules if row.name.endswith("word_embeddings")]
    return sum(rows) * recipe.parallel.tensor_model_parallel_size // recipe.model.hidden_size


_OPTIONS = {"inside a node": "--link", "between nodes": "--network"}


def unknown_links(device: PlanDevice, layout: Layout, stages: Sequence[StagePlan]) -> list[str]:
    """Return a line for each kind of link of unknown speed that messages pass."""
    links = RankLinks(device.figures, layout, 1.0)
    messages = [message for stage in stages for message in (*stage.costs.messages, *stage.costs.messages_once)]
    return [
        f"messages {where} count as 0: their speed is unknown for {device.name}; set it by {_OPTIONS[where]}"
        for where in links.unknown(messages)
    ]


def left_out(recipe: Recipe) -> list[str]:
    """Return what the estimate of a step never counts."""
    lines = ["launches of kernels, loading of data, evaluation and checkpoints"]
    zero = recipe.engine.zero
    if zero.offload_optimizer.device != "none":
        lines.append("the optimizer's step on the host, and its copies: the speed of the host's link is unknown")
    if zero.offload_param.device != "none":
        lines.append("copies of weights from the host: the speed of its link is unknown")
    if recipe.train.rampup_batch_size is not None:
        lines.append("smaller batches while train.rampup_batch_size grows them")
    return lines
