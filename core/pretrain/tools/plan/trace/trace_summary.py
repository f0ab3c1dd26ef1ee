"""Summarizes the trace of a rank as the plan of its stage: memory by part and module, and costs."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

from pretrain.model.requests import compute_dtype
from pretrain.tools.plan.stage_plan import PARTS, Costs, ModuleRow, Moment, StagePlan
from pretrain.tools.plan.trace.storages import reserved

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pretrain.recipe import Recipe
    from pretrain.tools.plan.trace.rank_trace import RankTrace
    from pretrain.tools.plan.trace.storages import MemoryBlock, StepPlace


def summarize_trace(
    trace: RankTrace, *, stage: int, layers: str, recipe: Recipe, groups: int, memory: int | None
) -> StagePlan:
    """Return the plan of a stage; `memory` are the device's bytes, of which the process groups take `groups`."""
    course = MemoryCourse(trace)
    parts = dict.fromkeys(PARTS, 0) | course.parts(course.peak) | {"process groups": groups}
    limit = None if memory is None else memory - groups
    parts["reserve"] = max(0, reserved(trace.blocks, limit) - course.peak_bytes)
    return StagePlan(
        stage=stage,
        rank=trace.rank,
        layers=layers,
        parameters=sum(trace.parameters.values()),
        parts=parts,
        host_bytes=MemoryCourse(trace, on_host=True).peak_bytes,
        peak_at=peak_text(course.newest_at_peak()),
        micro_batches=trace.micro_batches[-1],
        course=course.moments(),
        modules=module_rows(trace, compute_dtype(recipe).itemsize),
        costs=trace_costs(trace),
    )


Item = TypeVar("Item")


def trace_costs(trace: RankTrace) -> Costs:
    """Return the costs of a trace's last two steps, which have different numbers of micro-batches if there are two."""
    operations, messages = trace.work.operations, trace.work.messages
    forward, rest_forward = _split(trace, operations, lambda place: place.is_forward)
    backward, rest_backward = _split(trace, operations, lambda place: place.is_in_pass and place.is_backward)
    last = len(trace.steps)
    rest = of_step(operations, last, lambda place: not place.is_in_pass)
    sent, sent_once = _split(trace, messages, lambda place: place.is_in_pass)
    of_update = of_step(messages, last, lambda place: not place.is_in_pass)
    return Costs(
        forward=forward,
        backward=backward,
        once=Counter(rest_forward) + Counter(rest_backward) + rest,
        messages=sent,
        messages_once=Counter(sent_once) + of_update,
    )


def _split(
    trace: RankTrace, counted: Mapping[tuple[StepPlace, Item], int], chosen: Callable[[StepPlace], bool]
) -> tuple[dict[Item, float], dict[Item, float]]:
    """Return how often each item occurs in a micro-batch, and how often in the rest of a step."""
    last = len(trace.steps)
    counts = {step: of_step(counted, step, chosen) for step in (last - 1, last)}
    fewer, more = (trace.micro_batches[step - 1] if step > 0 else 0 for step in (last - 1, last))
    if more == fewer:
        return {item: count / more for item, count in counts[last].items()}, {}
    each = {
        item: (count - counts[last - 1][item]) / (more - fewer)
        for item, count in counts[last].items()
        if count > counts[last - 1][item]
    }
    once = {item: count - each.get(item, 0.0) * more for item, count in counts[last].items()}
    return each, {item: count for item, count in once.items() if count > 0}


def of_step(
    counted: Mapping[tuple[StepPlace, Item], int], step: int, chosen: Callable[[StepPlace], bool]
) -> Counter[Item]:
    """Return how often each item occurs in the chosen places of a step."""
    found: Counter[Item] = Counter()
    for (place, item), count in counted.items():
        if place.step == step and chosen(place):
            found[item] += count
    return found


POINTS = 400  # moments of a course


class MemoryCourse:
    """Memory of the last step of a trace, on the device or on the host."""

    def __init__(self, trace: RankTrace, *, on_host: bool = False) -> None:
        self._begin, self._updated, self._end = trace.steps[-1]
        self._blocks = [
            (block, _part(block, number, trace))
            for number, block in enumerate(trace.blocks)
            if block.on_host == on_host and block.size and (block.died is None or block.died >= self._begin)
        ]
        changes = [(block.born, part, block.size) for block, part in self._blocks]
        changes += [(block.died, part, -block.size) for block, part in self._blocks if block.died is not None]
        self._changes = sorted(change for change in changes if change[0] <= self._end)
        self.peak, self.peak_bytes = self._find_peak()  # time at which most is allocated, and how much

    def parts(self, time: int) -> dict[str, int]:
        """Return the bytes of each part that are allocated at a time."""
        found: dict[str, int] = defaultdict(int)
        for block, part in self._blocks:
            if block.born <= time and block.outlives(time):
                found[part] += block.size
        return dict(found)

    def moments(self) -> list[Moment]:
        """Return the course at `POINTS` moments of equal distance, and at the peak."""
        span = max(1, self._end - self._begin)
        times = {self._begin + span * point // POINTS for point in range(POINTS + 1)}
        times.add(max(self.peak, self._begin))
        found: dict[str, int] = defaultdict(int)
        moments, changes = [], iter(self._changes)
        change = next(changes, None)
        for time in sorted(times):
            while change is not None and change[0] <= time:
                found[change[1]] += change[2]
                change = next(changes, None)
            moments.append(Moment(at=(time - self._begin) / span, parts=dict(found)))
        return moments

    def newest_at_peak(self) -> StepPlace | None:
        """Return where the last block before the peak was allocated."""
        before = [block for block, _ in self._blocks if block.born <= self.peak]
        return max(before, key=lambda block: block.born).place if before else None

    def _find_peak(self) -> tuple[int, int]:
        now = sum(change for time, _, change in self._changes if time < self._begin)
        peak, at = now, self._begin - 1
        for time, _, change in self._changes:
            if time < self._begin:
                continue
            now += change
            if now > peak:
                peak, at = now, time
        return at, peak


def _part(block: MemoryBlock, number: int, trace: RankTrace) -> str:
    _, updated, _ = trace.steps[-1]
    if number in trace.weights:
        return "weights"
    if number in trace.gradients:
        return "gradients"
    if block.is_workspace:
        return "workspace"
    if block.place.step == 0 or block.place.phase == "optimizer":
        return "optimizer"
    if block.place.is_accumulation and not block.on_host:
        return "gradients"
    outlives = block.born < updated and block.outlives(updated)
    return "gradients" if outlives and not block.on_host else "activations"


_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_CHUNK = re.compile(r"^chunk \d+: ")


def module_rows(trace: RankTrace, weight_bytes: int) -> list[ModuleRow]:
    """Return a row for every kind of module that has parameters or keeps activations."""
    parameters: dict[str, int] = defaultdict(int)
    modules: dict[str, set[str]] = defaultdict(set)
    for name, count in trace.parameters.items():
        owner = name.rpartition(".")[0]
        parameters[_kind(owner)] += count
        for module in accumulate(owner.split("."), "{}.{}".format):
            modules[_kind(module)].add(module)
    counted = set(modules)
    activations: dict[str, int] = defaultdict(int)
    for module, size in _kept(trace).items():
        activations[_kind(module)] += size
        if _kind(module) not in counted:
            modules[_kind(module)].add(module)
    return [
        ModuleRow(
            name=kind,
            count=len(modules[kind]),
            parameters=parameters[kind],
            weights=parameters[kind] * weight_bytes,
            activations=activations[kind],
        )
        for kind in dict.fromkeys([*parameters, *activations])
    ]


def _kind(module: str) -> str:
    return _NUMBER.sub("*", _CHUNK.sub("", module)) or "model"


def _kept(trace: RankTrace) -> dict[str, int]:
    """Return what the first forward pass of the last step allocates and keeps, by module."""
    found: dict[str, int] = defaultdict(int)
    begin, updated, _ = trace.steps[-1]
    first = [block for block in trace.blocks if block.place.step == len(trace.steps) and block.place.micro_batch == 1]
    # After a backward pass the next micro-batch is read, before its forward pass begins.
    turn = min((block.born for block in first if block.place.is_backward), default=updated)
    forward = [block for block in first if begin <= block.born < turn and block.place.is_forward]
    end = max((block.born for block in forward), default=begin)
    for block in forward:
        if block.place.module and not block.on_host and block.outlives(end):
            found[block.place.module] += block.size
    return dict(found)


def peak_text(place: StepPlace | None) -> str:
    """Return where in the step memory is highest: "a backward pass, after 8 forward passes had begun"."""
    if place is None or place.step == 0:
        return "between the steps"
    if place.phase == "optimizer":
        return "update of the weights"
    if place.phase == "gradients":
        return "beginning of the step"
    inside = ", ".join(filter(None, (place.module, place.operation)))
    number = place.micro_batch
    if place.is_backward:
        passes = f"{number} forward pass{'' if number == 1 else 'es'}"
        begun = f"a backward pass, after {passes} had begun"
    else:
        begun = f"forward pass {number}"
    return f"{begun}: {inside}" if inside else begun
