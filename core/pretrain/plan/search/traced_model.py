"""Traces of small models, each of one or two layers, of which the pieces are the differences."""

from __future__ import annotations

import multiprocessing
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pretrain.cores import available_cores
from pretrain.errors import BackendError, PretrainError
from pretrain.plan.search.kept_activations import ATTENTION, Activations, region_of
from pretrain.plan.trace.stage_tracing import install_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pretrain.plan.costs import Message, Operation
    from pretrain.plan.trace.place import Place
    from pretrain.plan.trace.rank_trace import RankTrace
    from pretrain.plan.trace.stage_tracing import Subject

Item = TypeVar("Item")


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
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(min(len(subjects), available_cores()), mp_context=context) as processes:
        try:
            return list(processes.map(_trace, subjects))
        except BrokenProcessPool:
            msg = "a process that traces a model was killed, probably for want of memory.\nA trace takes about 1 GB."
            raise BackendError(msg) from None


def _trace(subject: Subject) -> TracedModel:
    plugins = install_for(subject)
    from pretrain.plan.trace.rank_trace import trace_rank  # noqa: PLC0415  imports megatron.core: after the bridge

    try:
        trace = trace_rank(
            subject.recipe,
            plugins,
            rank=0,
            world_size=subject.layout.world_size,
            vocab_size=subject.vocab_size,
            micro_batches=(1, 1),
        )
    except PretrainError:
        raise
    except Exception as error:
        msg = f"a layer cannot be planned: {type(error).__name__}: {error}\nPRETRAIN_TRACEBACK=1 shows where."
        raise BackendError(msg) from error
    return _summary(trace)


def _summary(trace: RankTrace) -> TracedModel:

    parameters: dict[str, int] = defaultdict(int)
    for name, count in trace.parameters.items():
        parameters[region_of(name)] += count
    operations, messages = _of_last_step(trace.work.operations), _of_last_step(trace.work.messages)
    forward: dict[str, Counter[Operation]] = defaultdict(Counter)
    for (place, operation), count in operations.items():
        if _is_forward(place):
            forward[region_of(place.module)][operation] += count
    sent: dict[str, Counter[Message]] = defaultdict(Counter)
    for (place, message), count in messages.items():
        if _is_forward(place):
            sent[region_of(place.module)][message] += count
    activations = Activations(trace)
    return TracedModel(
        parameters=dict(parameters),
        forward=dict(forward),
        attention=_of(operations, lambda place: _is_forward(place) and ATTENTION in place.module),
        backward=_of(operations, lambda place: place.phase == "forward-backward" and place.is_backward),
        update=_of(operations, lambda place: place.phase != "forward-backward"),
        sent_forward=dict(sent),
        sent_backward=_of(messages, lambda place: place.phase == "forward-backward" and place.is_backward),
        kept=activations.kept(),
        kept_by_attention=activations.kept_by_attention(),
        peak_in_head=activations.peak_before_layers(),
        peak_in_layers=activations.peak_in_first_layer(),
    )


def _of_last_step(counted: Counter[tuple[Place, Item]]) -> Counter[tuple[Place, Item]]:
    last = max(place.step for place, _ in counted) if counted else 0
    return Counter({(place, item): count for (place, item), count in counted.items() if place.step == last})


def _is_forward(place: Place) -> bool:
    return place.phase == "forward-backward" and not place.is_backward


def _of(counted: Counter[tuple[Place, Item]], chosen: Callable[[Place], bool]) -> Counter[Item]:
    found: Counter[Item] = Counter()
    for (place, item), count in counted.items():
        if chosen(place):
            found[item] += count
    return found
