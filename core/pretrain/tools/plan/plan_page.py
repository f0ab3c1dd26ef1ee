"""Plan as one HTML page: the numbers of the screen, and each stage's memory over the step (`pretrain plan --html`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.errors import PretrainError
from pretrain.report.page import html, svg
from pretrain.tools.plan.screen import MODULE_HEAD, head, module_cells, part_rows, peaks, unplanned, verdict
from pretrain.tools.plan.stage_plan import PARTS
from pretrain.tools.plan.wording import GIB, assumptions, gib, time_lines

if TYPE_CHECKING:
    from pretrain.tools.plan.plan import Plan
    from pretrain.tools.plan.stage_plan import StagePlan

X_LABEL = "share of the step's allocations and releases, not of its time"
FOLLOWED = PARTS[:5]  # parts whose course is known; the others are shown by a line above it
ROOM = 1.05  # height of a chart in that of its highest line
FLAT = 3  # A device's memory above so many times the fullest stage is left out of the charts
_PEAK, _LIMIT = "peak with reserve and process groups", "device memory"


def write_page(plan: Plan, output: Path) -> None:
    """Write the page, atomically."""
    html.write_page(page(plan), output, PretrainError)


def page(plan: Plan) -> str:
    """Return the page."""
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
        html.paragraph(time_lines(plan.time)),
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
        title += f"; the device's {gib(memory)} GiB are far above"
    heights = {part: [moment.parts.get(part, 0) / GIB for moment in stage.course] for part in FOLLOWED}
    xs = [moment.at for moment in stage.course]
    return svg.stacked_areas(title, xs, heights, levels, top=ROOM * highest / GIB, x_name=X_LABEL)


def _modules(stage: StagePlan) -> str:
    name, number, parameters, weights, activations = MODULE_HEAD
    names = [name, number, parameters, f"{weights}, MiB", f"{activations} a micro-batch, MiB"]
    return html.table(names, module_cells(stage.modules, "\u00a0" * 4), style="numbers")
