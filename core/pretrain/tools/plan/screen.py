"""A plan as text of one screen."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from pretrain.report.plain_text import indented
from pretrain.tools.plan.plan_json import kernels_by_operation
from pretrain.tools.plan.stage_plan import PARTS
from pretrain.tools.plan.tables import part_rows
from pretrain.tools.plan.wording import assumptions, gib, size_text, time_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pretrain.tools.plan.plan import Plan

    Paint = Callable[[str, str], str]
    """Colours a text as a part of `PARTS`, or as "limit"."""

WIDTH = 80
"""Characters of a line; an unbreakable name may be longer."""
LABEL, NUMBER = 9, 11
"""Characters to the left and to the right of a bar."""
COLUMNS = 6
"""Stages beside each other in the table."""
ERROR = 0.05
"""Share of the peak by which a plan may err: docs/plan.md."""


LETTERS = dict(zip(PARTS, "WGOAKRP", strict=True))
"""Character of each part in a bar; K is the kernels' workspace."""
FREE = "."
LIMIT = "|"


def unpainted(part: str, text: str) -> str:  # noqa: ARG001  the signature of every `Paint`
    """Return the text as it is, for output without colours."""
    return text


def plan_text(plan: Plan, paint: Paint = unpainted) -> str:
    """Return the plan as plain text."""
    blocks = [
        _wrapped(head(plan)),
        [*_bars(plan, paint), "", *_wrapped([verdict(plan)]), *_tables(plan, paint)],
        _wrapped([*peaks(plan), *unplanned(plan)]),
        _wrapped(time_lines(plan.time)),
        ["assumed:", *(line for text in assumptions(plan) for line in indented(text, 2, WIDTH))],
        _wrapped(plan.notices),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def head(plan: Plan) -> list[str]:
    """Return what is planned: recipe, devices, layout, kernels, and what was traced for it."""
    layout, recipe = plan.layout, plan.recipe
    batches = layout.num_microbatches(recipe.train.global_batch_size)
    chunks = layout.virtual_pipeline_model_parallel_size
    interleaved = f" (interleaved, {chunks} chunks)" if chunks else ""
    ranks = ", ".join(str(stage.rank) for stage in plan.stages)
    taken = ", ".join(str(stage.micro_batches) for stage in plan.stages)
    word = "ranks" if len(plan.stages) > 1 else "rank"
    sizes = (
        f"tensor {layout.tensor_model_parallel_size} x pipeline {layout.pipeline_model_parallel_size}{interleaved} "
        f"x data {layout.data_parallel_size}"
    )
    kernels = kernels_by_operation(plan)
    named = ", ".join(f"{operation} {'/'.join(names)}" for operation, names in kernels.items())
    return [
        f"{recipe.source} on {layout.world_size} x {plan.device.name}, {size_text(plan.device.memory)}",
        f"layout: {sizes}; {batches} micro batch{'' if batches == 1 else 'es'} of {layout.micro_batch_size} a step",
        f"kernels: {named}",
        f"traced: a second step of {word} {ranks}, with {taken} of {batches} micro batches",
    ]


def verdict(plan: Plan) -> str:
    """Say whether the fullest stage fits into the device's memory, and by how much."""
    fullest = max(plan.stages, key=lambda stage: stage.peak_bytes)
    if plan.device.memory is None:
        return f"needs {gib(fullest.peak_bytes)} GiB on stage {fullest.stage}; --memory says what the device has"
    spare = plan.device.memory - fullest.peak_bytes
    if spare < 0:
        more = plan.enough_devices
        enough = "" if more is None else f"; with more replicas it fits on {more} devices: --devices {more}"
        return f"does not fit: {gib(-spare)} GiB too much on stage {fullest.stage}{enough}"
    text = f"fits: {gib(spare)} GiB to spare on stage {fullest.stage}, the fullest"
    return f"{text}; the plan may err by more" if spare < ERROR * fullest.peak_bytes else text


def peaks(plan: Plan) -> list[str]:
    """Return when in the step the peak is, one line for stages that agree."""
    stages: dict[str, list[str]] = {}
    for stage in plan.stages:
        stages.setdefault(stage.peak_at, []).append(str(stage.stage))
    return [
        f"peak of stage{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}: {at}" for at, numbers in stages.items()
    ]


def unplanned(plan: Plan) -> list[str]:
    """Return lines about the stages that were not traced: each holds at most what the traced one before it does."""
    traced = [stage.stage for stage in plan.stages]
    lines = []
    for before, after in pairwise(traced):
        if after - before == 2:
            lines.append(f"stage {before + 1} holds at most what stage {before} holds")
        elif after - before > 2:
            lines.append(f"stages {before + 1} to {after - 1} hold at most what stage {before} holds")
    return lines


def _bars(plan: Plan, paint: Paint) -> list[str]:
    memory = plan.device.memory
    scale = max(plan.peak_bytes, memory or 0)
    width = WIDTH - LABEL - NUMBER - 1
    return [
        f"{f'stage {stage.stage}':<{LABEL}}{bar(stage.parts, scale=scale, memory=memory, width=width, paint=paint)}"
        f"{gib(stage.peak_bytes):>{NUMBER - 4}} GiB"
        for stage in plan.stages
    ]


def _tables(plan: Plan, paint: Paint) -> list[str]:
    lines = []
    for first in range(0, len(plan.stages), COLUMNS):
        stages = plan.stages[first : first + COLUMNS]
        lines += ["", _row("", [f"stage {stage.stage}" for stage in stages])]
        for name, cells in part_rows(stages):
            letter = LETTERS.get(name)
            lines.append(_row(name, cells) if letter is None else paint(name, letter) + _row(f" {name}", cells, 17))
    return lines


def _row(name: str, cells: Sequence[str], width: int = 18) -> str:
    return f"{name:<{width}}{''.join(f'{cell:>10}' for cell in cells)}"


def _wrapped(texts: Iterable[str]) -> Sequence[str]:
    return [line for text in texts for line in indented(text, 0, WIDTH)]


def bar(parts: Mapping[str, int], *, scale: int, memory: int | None, width: int, paint: Paint) -> str:
    """Return a bar of `width` characters, and one more for the mark at the device's memory.

    Args:
        parts: bytes by `PARTS`.
        scale: bytes of the whole bar.
        memory: bytes of the device, where the mark is; None: no mark.
        width: characters.
        paint: colours the pieces.
    """
    cells = [_part_at(parts, (cell + 0.5) * scale / width) for cell in range(width)]
    text = [_painted(cells, paint)]
    if memory is not None:
        limit = min(width, round(memory / scale * width))
        text = [_painted(cells[:limit], paint), paint("limit", LIMIT), _painted(cells[limit:], paint, free=" ")]
    return "".join(text)


def _part_at(parts: Mapping[str, int], position: float) -> str:
    """Return the part that lies at a number of bytes from the left end; "" to the right of all."""
    end = 0
    for part in PARTS:
        end += parts.get(part, 0)
        if position < end:
            return part
    return ""


def _painted(cells: Sequence[str], paint: Paint, free: str = FREE) -> str:
    pieces = ((part, len(list(run))) for part, run in groupby(cells))
    return "".join(paint(part, LETTERS[part] * length) if part else free * length for part, length in pieces)
