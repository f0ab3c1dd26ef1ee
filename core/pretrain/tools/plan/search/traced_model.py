"""Traces of small models, each of one or two layers, of which the pieces are the differences."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.tools.plan.trace.stage_tracing import in_processes, trace_subject
from pretrain.tools.plan.trace.trace_stage import of_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.tools.plan.stage_plan import Message, Operation
    from pretrain.tools.plan.trace.rank_trace import RankTrace
    from pretrain.tools.plan.trace.stage_tracing import TraceSubject
    from pretrain.tools.plan.trace.storages import StepPlace


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedModel:
    """Second step of a small model on one stage with one micro-batch, by region: "embedding", "layers" or "head".

    Attributes:
        parameters: by region.
        forward: operations by region.
        attention: operations of `ATTENTION`'s forward passes.
        backward: operations of the backward pass.
        update: operations of the optimizer.
        sent_forward: messages by region.
        sent_backward: messages of the backward pass.
        kept: bytes by region that the forward pass leaves.
        kept_by_attention: bytes that `ATTENTION`'s forward passes leave.
        peak_in_head: bytes of activations at their peak before the first backward pass of a layer ends.
        peak_in_layers: bytes of activations at their peak in the backward pass of the first layer.
    """

    parameters: dict[str, int]
    forward: dict[str, Counter[Operation]]
    attention: Counter[Operation]
    backward: Counter[Operation]
    update: Counter[Operation]
    sent_forward: dict[str, Counter[Message]]
    sent_backward: Counter[Message]
    kept: dict[str, int]
    kept_by_attention: int
    peak_in_head: int
    peak_in_layers: int


def trace_models(subjects: Sequence[TraceSubject]) -> list[TracedModel]:
    """Trace one step of each, on as many processes as there are cores.

    Raises:
        PretrainError: an engine cannot be built: no allowed kernel, a broken plugin.
    """
    return in_processes(_trace, subjects)


def _trace(subject: TraceSubject) -> TracedModel:
    return _summary(trace_subject(subject, rank=0, micro_batches=(1, 1), name="a layer"))


def _summary(trace: RankTrace) -> TracedModel:
    parameters: dict[str, int] = defaultdict(int)
    for name, count in trace.parameters.items():
        parameters[region_of(name)] += count
    operations, messages, last = trace.work.operations, trace.work.messages, len(trace.steps)
    forward: dict[str, Counter[Operation]] = defaultdict(Counter)
    for (place, operation), count in operations.items():
        if place.step == last and _is_forward(place):
            forward[region_of(place.module)][operation] += count
    sent: dict[str, Counter[Message]] = defaultdict(Counter)
    for (place, message), count in messages.items():
        if place.step == last and _is_forward(place):
            sent[region_of(place.module)][message] += count
    activations = Activations(trace)
    return TracedModel(
        parameters=dict(parameters),
        forward=dict(forward),
        attention=of_step(operations, last, lambda place: _is_forward(place) and ATTENTION in place.module),
        backward=of_step(operations, last, _is_backward),
        update=of_step(operations, last, lambda place: place.phase != "forward-backward"),
        sent_forward=dict(sent),
        sent_backward=of_step(messages, last, _is_backward),
        kept=activations.kept(),
        kept_by_attention=activations.kept_by_attention(),
        peak_in_head=activations.peak_before_layers(),
        peak_in_layers=activations.peak_in_first_layer(),
    )


def _is_forward(place: StepPlace) -> bool:
    return place.phase == "forward-backward" and not place.is_backward


def _is_backward(place: StepPlace) -> bool:
    return place.phase == "forward-backward" and place.is_backward


ATTENTION = "core_attention"
"""Module of megatron-core between the attention's projections, whose forward pass selective recompute repeats."""


def region_of(module: str) -> str:
    """Return the region of a module by its path."""
    if module.startswith("embedding"):
        return "embedding"
    return "layers" if module.startswith("decoder.layers.") else "head"


class Activations:
    """Activations of a trace of one step: what forward and backward pass allocate and free again."""

    def __init__(self, trace: RankTrace) -> None:
        """Take the last step of a trace."""
        begin, self._updated, _ = trace.steps[-1]
        self._blocks = [
            block
            for number, block in enumerate(trace.blocks)
            if block.born >= begin
            and not block.on_host
            and block.place.phase == "forward-backward"
            and (block.died or self._updated) <= self._updated
            and number not in trace.gradients
        ]
        backward = [block.born for block in self._blocks if block.place.is_backward]
        self._turn = min(backward, default=self._updated)
        self._kept = [block for block in self._blocks if block.born < self._turn <= (block.died or self._updated)]

    def kept(self) -> dict[str, int]:
        """Return the bytes that the forward pass leaves for the backward pass, by region."""
        found: dict[str, int] = defaultdict(int)
        for block in self._kept:
            found[region_of(block.place.module)] += block.size
        return dict(found)

    def kept_by_attention(self) -> int:
        """Return those of them that `ATTENTION` leaves."""
        return sum(block.size for block in self._kept if ATTENTION in block.place.module)

    def peak_before_layers(self) -> int:
        """Return the peak in bytes until the last layer's backward pass frees what it was kept for."""
        return self._peak(0, min(min(deaths) for deaths in self._deaths().values()))

    def peak_in_first_layer(self) -> int:
        """Return the peak in bytes of the first layer's backward pass, from its first to its last release."""
        last = max(self._deaths().values(), key=max)
        return self._peak(min(last), max(last))

    def _deaths(self) -> dict[str, list[int]]:
        """Return when each layer's kept blocks are freed, in its backward pass."""
        found: dict[str, list[int]] = defaultdict(list)
        for block in self._kept:
            if region_of(block.place.module) == "layers" and block.died is not None:
                found[block.place.module.split(".")[2]].append(block.died)
        return dict(found)

    def _peak(self, begin: int, end: int) -> int:
        changes = [(block.born, block.size) for block in self._blocks]
        changes += [(block.died, -block.size) for block in self._blocks if block.died is not None]
        now = peak = 0
        for time, change in sorted(changes):
            if time > end:
                break
            now += change
            if time >= begin:
                peak = max(peak, now)
        return peak
