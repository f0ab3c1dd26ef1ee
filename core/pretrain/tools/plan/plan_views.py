"""A plan as text of one screen, and as an HTML page with each stage's memory over the step."""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pretrain.report import html, svg
from pretrain.report.plain_text import indented
from pretrain.tools.plan.run_costs import cost_lines
from pretrain.tools.plan.stage_plan import PARTS
from pretrain.tools.plan.wording import GIB, MIB, assumptions, count, decimals_of, gib, kernels_by_operation, time_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pretrain.tools.plan.plan import Plan
    from pretrain.tools.plan.stage_plan import ModuleRow, StagePlan

WIDTH = 80  # characters of a line; an unbreakable name may be longer
LABEL, NUMBER = 9, 11  # characters to the left and to the right of a bar
COLUMNS = 6  # stages beside each other in the table
ERROR = 0.05  # share of the peak by which a plan may err: docs/plan.md
LETTERS = dict(zip(PARTS, "WGOAKRP", strict=True))  # character of each part in a bar; K is the kernels' workspace
FREE, LIMIT = ".", "|"
COLOURS = {
    "weights": "blue",
    "gradients": "yellow",
    "optimizer": "green",
    "activations": "magenta",
    "workspace": "cyan",
    "reserve": "bright_black",
    "process groups": "white",
    "limit": "red",
}
"""Colour of each part in the bars; `click.echo` leaves colours out where the output is no terminal."""


def plan_text(plan: Plan) -> str:
    """Return the plan as text for a terminal, with colours."""
    blocks = [
        _wrapped(head(plan)),
        [*_bars(plan), "", *_wrapped([verdict(plan)]), *_tables(plan)],
        _wrapped([*peaks(plan), *unplanned(plan)]),
        _wrapped(time_lines(plan.time)),
        _wrapped(cost_lines(plan.costs)),
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
    tensor, pipeline = layout.tensor_model_parallel_size, layout.pipeline_model_parallel_size
    context = f"context {layout.context_parallel_size} x " if layout.context_parallel_size > 1 else ""
    sizes = f"tensor {tensor} x pipeline {pipeline}{interleaved} x {context}data {layout.data_parallel_size}"
    named = ", ".join(f"{operation} {'/'.join(names)}" for operation, names in kernels_by_operation(plan).items())
    memory = plan.device.memory
    size = "memory unknown"
    if memory is not None:
        size = f"{memory // GIB} GiB" if memory % GIB == 0 else f"{gib(memory)} GiB"
    return [
        f"{recipe.source} on {layout.world_size} x {plan.device.name}, {size}",
        f"layout: {sizes}; {batches} micro batch{'' if batches == 1 else 'es'} of {layout.micro_batch_size} a step",
        *([layout.expert_sizes] if layout.expert_sizes else []),
        f"kernels: {named}",
        f"traced: a second step of {word} {ranks}, with {taken} of {batches} micro batches",
    ]


def verdict(plan: Plan) -> str:
    """Say whether the fullest stage fits into the device's memory, and by how much."""
    fullest = max(plan.stages, key=lambda stage: stage.peak_bytes)
    if plan.device.memory is None:
        return f"needs {gib(fullest.peak_bytes)} GiB on stage {fullest.stage}; give the device's memory by --memory"
    spare = plan.device.memory - fullest.peak_bytes
    if spare < 0:
        more = plan.enough_devices
        enough = "" if more is None else f"; with more replicas it fits on {more} devices: --devices {more}"
        return f"does not fit: {gib(-spare)} GiB too much on stage {fullest.stage}{enough}"
    text = f"fits: {gib(spare)} GiB to spare on stage {fullest.stage}, the fullest"
    return f"{text}; the plan's error may be larger" if spare < ERROR * fullest.peak_bytes else text


def peaks(plan: Plan) -> list[str]:
    """Return when in the step the peak is, one line for stages that agree."""
    stages: dict[str, list[str]] = {}
    for stage in plan.stages:
        stages.setdefault(stage.peak_at, []).append(str(stage.stage))
    return [f"peak of stage{'s' * (len(each) > 1)} {', '.join(each)}: {at}" for at, each in stages.items()]


def unplanned(plan: Plan) -> list[str]:
    """Return lines about the stages that were not traced: each holds at most what the traced one before it does."""
    lines = []
    for before, after in pairwise(stage.stage for stage in plan.stages):
        if after - before == 2:
            lines.append(f"stage {before + 1} holds at most what stage {before} holds")
        elif after - before > 2:
            lines.append(f"stages {before + 1} to {after - 1} hold at most what stage {before} holds")
    return lines


def _bars(plan: Plan) -> Iterator[str]:
    memory = plan.device.memory
    scale, width = max(plan.peak_bytes, memory or 0), WIDTH - LABEL - NUMBER - 1
    for stage in plan.stages:
        drawn = bar(stage.parts, scale=scale, memory=memory, width=width)
        yield f"{f'stage {stage.stage}':<{LABEL}}{drawn}{gib(stage.peak_bytes):>{NUMBER - 4}} GiB"


def _tables(plan: Plan) -> list[str]:
    lines = []
    for first in range(0, len(plan.stages), COLUMNS):
        stages = plan.stages[first : first + COLUMNS]
        lines += ["", _row("", [f"stage {stage.stage}" for stage in stages])]
        for name, cells in part_rows(stages):
            letter = LETTERS.get(name)
            lines.append(_row(name, cells) if letter is None else _paint(name, letter) + _row(f" {name}", cells, 17))
    return lines


def _row(name: str, cells: Sequence[str], width: int = 18) -> str:
    return f"{name:<{width}}{''.join(f'{cell:>10}' for cell in cells)}"


def _wrapped(texts: Iterable[str]) -> Sequence[str]:
    return [line for text in texts for line in indented(text, 0, WIDTH)]


def bar(parts: Mapping[str, int], *, scale: int, memory: int | None, width: int) -> str:
    """Return a bar of `width` characters, and one more for the mark at the device's memory."""
    ends = list(accumulate(parts.get(part, 0) for part in PARTS))
    cells = [(*PARTS, "")[bisect_right(ends, (cell + 0.5) * scale / width)] for cell in range(width)]
    if memory is None:
        return _painted(cells)
    limit = min(width, round(memory / scale * width))
    return _painted(cells[:limit]) + _paint("limit", LIMIT) + _painted(cells[limit:], free=" ")


def _painted(cells: Sequence[str], free: str = FREE) -> str:
    pieces = ((part, len(list(run))) for part, run in groupby(cells))
    return "".join(_paint(part, LETTERS[part] * length) if part else free * length for part, length in pieces)


def _paint(part: str, text: str) -> str:
    return click.style(text, fg=COLOURS[part], bold=part == "limit" or None)


MODULE_HEAD = ("module", "count", "parameters", "weights", "activations")
_PART = re.compile(r"\.(?!\*)")  # border between a module and its part; the star of numbered ones belongs to their list


def part_rows(stages: Sequence[StagePlan]) -> list[tuple[str, list[str]]]:
    """Return layers and parameters of each stage, each part that any stage has in GiB, and the sums."""
    decimals = decimals_of(max(stage.peak_bytes for stage in stages))

    def sizes(size: Callable[[StagePlan], int]) -> list[str]:
        return [gib(size(stage), decimals) for stage in stages]

    held = [part for part in PARTS if any(stage.parts.get(part) for stage in stages)]
    rows = [
        ("layers", [stage.layers for stage in stages]),
        ("parameters", [count(stage.parameters) for stage in stages]),
        *((part, [gib(stage.parts.get(part, 0), decimals) for stage in stages]) for part in held),
        ("peak, GiB", sizes(lambda stage: stage.peak_bytes)),
        ("tensors alone", sizes(lambda stage: stage.allocated_bytes)),
    ]
    if any(stage.most_activations > stage.parts.get("activations", 0) for stage in stages):
        rows.append(("most activations", sizes(lambda stage: stage.most_activations)))
    if any(stage.host_bytes >= MIB for stage in stages):
        rows.append(("host memory", sizes(lambda stage: stage.host_bytes)))
    return rows


def module_text(plan: Plan) -> str:
    """Return a table for each stage that was traced; bytes in MiB."""
    return "\n\n".join(_module_table(stage) for stage in plan.stages)


def _module_table(stage: StagePlan) -> str:
    cells = [MODULE_HEAD, *module_cells(stage.modules, "  ")]
    width = max(len(row[0]) for row in cells)
    lines = [f"{row[0]:<{width}}{row[1]:>7}{row[2]:>12}{row[3]:>10}{row[4]:>13}".rstrip() for row in cells]
    return "\n".join([f"stage {stage.stage}, MiB; activations: what one micro-batch keeps", *lines])


def module_cells(rows: Sequence[ModuleRow], indent: str) -> list[tuple[str, ...]]:
    """Return a line of cells for each kind of module, as `MODULE_HEAD` names them, and their sums."""
    cells: list[tuple[str, ...]] = []
    for depth, label, row in nested(rows):
        numbers = ("", "", "", "") if row is None else (str(row.count), *_numbers([row]))
        cells.append((indent * depth + label, *numbers))
    return [*cells, ("sum", "", *_numbers(rows))]


def nested(rows: Sequence[ModuleRow]) -> list[tuple[int, str, ModuleRow | None]]:
    """Return the rows as a tree, in their order: depth, last part of the name, and the row; None for names above."""
    known = {row.name: row for row in rows}
    tree: dict[str, dict[str, None]] = {"": {}}
    for row in rows:
        above = ""
        for part in _PART.split(row.name):
            name = f"{above}.{part}" if above else part
            tree[above].setdefault(name)
            tree.setdefault(name, {})
            above = name

    def walk(above: str, depth: int) -> Iterator[tuple[int, str, ModuleRow | None]]:
        for name in tree[above]:
            yield depth, _PART.split(name)[-1], known.get(name)
            yield from walk(name, depth + 1)

    return list(walk("", 0))


def _numbers(rows: Sequence[ModuleRow]) -> tuple[str, str, str]:
    parameters = sum(row.parameters for row in rows)
    sizes = (sum(row.weights for row in rows), sum(row.activations for row in rows))
    weights, activations = (f"{size / MIB:,.1f}" if size else "-" for size in sizes)
    return count(parameters) if parameters else "-", weights, activations


X_LABEL = "share of the step's allocations and releases, not of its time"
FOLLOWED = PARTS[:5]  # parts whose course is known; the others are shown by a line above it
ROOM = 1.05  # height of a chart in that of its highest line
FLAT = 3  # A device's memory above so many times the fullest stage is left out of the charts
_PEAK, _LIMIT = "peak with reserve and process groups", "device memory"


def page(plan: Plan) -> str:
    """Return the HTML page."""
    areas = [(f"c{colour}", part) for colour, part in enumerate(FOLLOWED)]
    peak, memory = plan.peak_bytes, plan.device.memory or 0
    highest = memory if peak < memory <= FLAT * peak else peak  # of all charts
    in_gib = [(name, *cells) for name, cells in part_rows(plan.stages)]
    kernels = [(row.operation, row.kernel, row.provider) for row in plan.kernels.rows]
    parts = [
        html.paragraph(head(plan)),
        html.paragraph([verdict(plan)], "verdict"),
        html.legend([*areas, ("peak", _PEAK), ("limit", _LIMIT)]),
        html.charts(area_chart(stage, plan.device.memory, highest) for stage in plan.stages),
        html.table(["GiB", *(f"stage {stage.stage}" for stage in plan.stages)], in_gib, style="numbers"),
        html.paragraph([*peaks(plan), *unplanned(plan)]),
        html.paragraph([*time_lines(plan.time), *cost_lines(plan.costs)]),
        html.section("Assumptions", html.paragraph(assumptions(plan)), unfolded=True),
        html.section("Notices", html.paragraph(plan.notices), unfolded=True),
        *(html.section(f"Modules of stage {stage.stage}", _modules(stage)) for stage in plan.stages),
        html.section("Kernels", html.table(["operation", "kernel", "provider"], kernels)),
    ]
    return html.framed(f"Plan of {Path(plan.recipe.source).name}", parts)


def area_chart(stage: StagePlan, memory: int | None, highest: int) -> str:
    """Return the memory of a stage over a step: areas of the parts, and lines at its peak and at the limit."""
    title = f"stage {stage.stage}: GiB over one step"
    levels = [svg.Level("peak", stage.peak_bytes / GIB, f"{_PEAK}: {gib(stage.peak_bytes)} GiB")]
    if memory is not None and memory <= highest:
        levels.append(svg.Level("limit", memory / GIB, f"{_LIMIT}: {gib(memory)} GiB"))
    elif memory is not None:
        title += f"; the device's {gib(memory)} GiB are beyond the chart"
    heights = {part: [moment.parts.get(part, 0) / GIB for moment in stage.course] for part in FOLLOWED}
    xs = [moment.at for moment in stage.course]
    return svg.stacked_areas(title, xs, heights, levels, top=ROOM * highest / GIB, x_name=X_LABEL)


def _modules(stage: StagePlan) -> str:
    name, number, parameters, weights, activations = MODULE_HEAD
    names = [name, number, parameters, f"{weights}, MiB", f"{activations} a micro-batch, MiB"]
    return html.table(names, module_cells(stage.modules, "\u00a0" * 4), style="numbers")
