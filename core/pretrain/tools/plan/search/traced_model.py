"""Traces of small models, each of one or two layers, of which the pieces are the differences."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.tools.plan.search.kept_activations import ATTENTION, Activations, region_of
from pretrain.tools.plan.trace.costs_of_trace import of_step
from pretrain.tools.plan.trace.stage_tracing import in_processes, trace_subject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.tools.plan.costs import Message, Operation
    from pretrain.tools.plan.trace.place import Place
    from pretrain.tools.plan.trace.rank_trace import RankTrace
    from pretrain.tools.plan.trace.stage_tracing import Subject


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


def trace_models(subjects: Sequence[Subject]) -> list[TracedModel]:
    """Trace one step of each, on as many processes as there are cores.

    Raises:
        PretrainError: an engine cannot be built: no allowed kernel, a broken plugin.
    """
    return in_processes(_trace, subjects)


def _trace(subject: Subject) -> TracedModel:
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


def _is_forward(place: Place) -> bool:
    return place.phase == "forward-backward" and not place.is_backward


def _is_backward(place: Place) -> bool:
    return place.phase == "forward-backward" and place.is_backward
