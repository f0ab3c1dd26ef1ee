"""Plan of a stage from the trace of its first rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.model.requests import compute_dtype
from pretrain.tools.plan.stage_plan import PARTS, StagePlan
from pretrain.tools.plan.trace.caching_allocator import reserved
from pretrain.tools.plan.trace.costs_of_trace import costs_of
from pretrain.tools.plan.trace.memory_parts import MemoryCourse
from pretrain.tools.plan.trace.module_rows import module_rows
from pretrain.tools.plan.trace.peak_text import peak_text

if TYPE_CHECKING:
    from pretrain.recipe import Recipe
    from pretrain.tools.plan.trace.rank_trace import RankTrace


def stage_of(trace: RankTrace, *, stage: int, layers: str, recipe: Recipe, memory: int | None = None) -> StagePlan:
    """Return the plan of a stage.

    Args:
        trace: of its first rank.
        stage: from 0.
        layers: of the stage, in words.
        recipe: what is planned.
        memory: bytes that a device has for tensors, where that is known: its allocator holds no more than needed.
    """
    course = MemoryCourse(trace)
    parts = dict.fromkeys(PARTS, 0) | course.parts(course.peak)
    parts["reserve"] = max(0, reserved(trace.blocks, memory) - course.peak_bytes)
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
        costs=costs_of(trace),
    )
