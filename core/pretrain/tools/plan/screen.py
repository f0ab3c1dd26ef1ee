"""Plan of a training on one screen."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

from pretrain.report.plain_text import indented
from pretrain.tools.plan.plan_json import kernels_by_operation
from pretrain.tools.plan.stage_plan import PARTS
from pretrain.tools.plan.wording import MIB, assumptions, count, decimals_of, gib, size_text, time_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pretrain.tools.plan.plan import Plan
    from pretrain.tools.plan.stage_plan import ModuleRow, StagePlan


WIDTH = 80
"""Characters of a line; an unbreakable name may be longer."""
LABEL, NUMBER = 9, 11
"""Characters to the left and to the right of a bar."""
COLUMNS = 6
"""Stages beside each other in the table."""
ERROR = 0.05
"""Share of the peak by which a plan may err: docs/plan.md."""


def unpainted(part: str, text: str) -> str:  # noqa: ARG001  the signature of every `Paint`
    """Return the text as it is, for output that is no terminal."""
    return text


def plan_text(plan: Plan, paint: Paint = unpainted) -> str:
    """Return the plan as plain text.

    Args:
        plan: of `pretrain.tools.plan.plan.make_plan`.
        paint: colours the pieces of bars and legend.
    """
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
    """Return in words if the fullest stage fits into the device's memory, and by how much."""
    fullest = max(plan.stages, key=_peak)
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
    """Return when in the step the peak is, in a line for the stages that agree."""
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
        lines += ["", *table_of_parts(plan.stages[first : first + COLUMNS], paint)]
    return lines


def _peak(stage: StagePlan) -> int:
    return stage.peak_bytes


def _wrapped(texts: Iterable[str]) -> Sequence[str]:
    return [line for text in texts for line in indented(text, 0, WIDTH)]


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pretrain.tools.plan.stage_plan import StagePlan

    Paint = Callable[[str, str], str]
    """Colours a text as a part of `PARTS`, or as "limit"."""

LETTERS = dict(zip(PARTS, "WGOAKRP", strict=True))
"""Character of each part in a bar; K is the kernels' workspace."""
FREE = "."
LIMIT = "|"


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
    pieces: list[list[str]] = []
    for cell in cells:
        if pieces and pieces[-1][0] == cell:
            pieces[-1].append(cell)
        else:
            pieces.append([cell])
    return "".join(
        paint(piece[0], LETTERS[piece[0]] * len(piece)) if piece[0] else free * len(piece) for piece in pieces
    )


def table_of_parts(stages: Sequence[StagePlan], paint: Paint) -> list[str]:
    """Return layers and parameters of each stage, a line in GiB for each part that any stage has, and the sums.

    Where the peak is not the time of most activations, as in an update of the weights, they are a line of their own.
    """
    decimals = decimals_of(max(stage.peak_bytes for stage in stages))
    lines = [
        _row("", [f"stage {stage.stage}" for stage in stages]),
        _row("layers", [stage.layers for stage in stages]),
        _row("parameters", [count(stage.parameters) for stage in stages]),
    ]
    for part in PARTS:
        if any(stage.parts.get(part) for stage in stages):
            row = _row(f"{LETTERS[part]} {part}", [gib(stage.parts.get(part, 0), decimals) for stage in stages])
            lines.append(paint(part, row[0]) + row[1:])
    lines.append(_row("peak, GiB", [gib(stage.peak_bytes, decimals) for stage in stages]))
    lines.append(_row("of it tensors", [gib(stage.allocated_bytes, decimals) for stage in stages]))
    if any(stage.most_activations > stage.parts.get("activations", 0) for stage in stages):
        lines.append(_row("most activations", [gib(stage.most_activations, decimals) for stage in stages]))
    if any(stage.host_bytes >= MIB for stage in stages):
        lines.append(_row("host memory", [gib(stage.host_bytes, decimals) for stage in stages]))
    return lines


def _row(name: str, cells: Sequence[str]) -> str:
    return f"{name:<18}{''.join(f'{cell:>10}' for cell in cells)}"


HEAD = ("module", "count", "parameters", "weights", "activations")
_PART = re.compile(r"\.(?!\*)")
"""Border between a module and its part; the star of numbered ones belongs to their list."""


def module_text(plan: Plan) -> str:
    """Return a table for each stage that was traced; bytes in MiB."""
    return "\n\n".join(
        "\n".join([f"stage {stage.stage}, MiB; activations: what one micro-batch keeps", *_lines(stage.modules)])
        for stage in plan.stages
    )


def nested(rows: Sequence[ModuleRow]) -> list[tuple[int, str, ModuleRow | None]]:
    """Return the rows as a tree: depth, last part of the name, and the row; None for a name above others.

    Modules come in the order in which they or their first part are in `rows`.
    """
    known = {row.name: row for row in rows}
    tree: dict[str, None] = {}
    for row in rows:
        parts = _PART.split(row.name)
        for size in range(1, len(parts) + 1):
            tree.setdefault(".".join(parts[:size]))
    return [(depth, label, known.get(name)) for depth, label, name in _walk(list(tree), "", 0)]


def _walk(names: Sequence[str], above: str, depth: int) -> Iterator[tuple[int, str, str]]:
    for name in names:
        parent, label = _divided(name)
        if parent == above:
            yield depth, label, name
            yield from _walk(names, name, depth + 1)


def _divided(name: str) -> tuple[str, str]:
    parts = _PART.split(name)
    return ".".join(parts[:-1]), parts[-1]


def _lines(rows: Sequence[ModuleRow]) -> list[str]:
    cells = [HEAD]
    for depth, label, row in nested(rows):
        name = "  " * depth + label
        cells.append((name, "", "", "", "") if row is None else (name, *_cells(row)))
    cells.append(("sum", "", *_sums(rows)))
    width = max(len(row[0]) for row in cells)
    return [f"{row[0]:<{width}}{row[1]:>7}{row[2]:>12}{row[3]:>10}{row[4]:>13}".rstrip() for row in cells]


def _cells(row: ModuleRow) -> tuple[str, str, str, str]:
    parameters = count(row.parameters) if row.parameters else "-"
    return f"{row.count}", parameters, _mib(row.weights), _mib(row.activations)


def _sums(rows: Sequence[ModuleRow]) -> tuple[str, str, str]:
    return (
        count(sum(row.parameters for row in rows)),
        _mib(sum(row.weights for row in rows)),
        _mib(sum(row.activations for row in rows)),
    )


def _mib(size: int) -> str:
    return f"{size / MIB:,.1f}" if size else "-"
