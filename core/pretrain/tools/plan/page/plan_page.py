"""Plan of a training as one HTML page, with the numbers of the screen and the memory's course over the step."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.atomic_files import replacing
from pretrain.errors import PretrainError
from pretrain.report.page.frame import framed, section
from pretrain.report.page.html_tables import table
from pretrain.tools.plan.assumptions import assumptions
from pretrain.tools.plan.module_table import HEAD, nested
from pretrain.tools.plan.page.area_chart import FOLLOWED, area_chart
from pretrain.tools.plan.screen import head, peaks, unplanned, verdict
from pretrain.tools.plan.stage_plan import PARTS
from pretrain.tools.plan.time_text import time_lines
from pretrain.tools.plan.units import MIB, count, gib

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pretrain.tools.plan.plan import Plan
    from pretrain.tools.plan.stage_plan import ModuleRow, StagePlan

FLAT = 3
"""Device's memory in that of the fullest stage, above which it is left out of the charts."""
STYLE = """
polygon { fill: currentColor; fill-opacity: .8; }
.peak { stroke: var(--ink); stroke-dasharray: 4 4; }
.limit { stroke: var(--c6); stroke-width: 2; }
.axis-name { margin: 0; text-align: center; color: var(--quiet); font-size: .8rem; }
.legend .peak { color: var(--ink); } .legend .peak::before { border-top-style: dashed; }
.legend .limit { color: var(--c6); }
.verdict { font-weight: 600; }
"""


def write_page(plan: Plan, output: Path) -> None:
    """Write the page, atomically.

    Raises:
        PretrainError: it cannot be written.
    """
    with replacing(output, error=PretrainError) as stream:
        stream.write(page(plan).encode())


def page(plan: Plan) -> str:
    """Return the page: one file, without network access and scripts."""
    title = f"Plan of {Path(plan.recipe.source).name}"
    highest = _highest(plan)
    charts = "".join(area_chart(stage, plan.device.memory, highest) for stage in plan.stages)
    content = [
        f"<h1>{escape(title)}</h1>",
        _paragraphs(head(plan)),
        f'<p class="verdict">{escape(verdict(plan))}</p>',
        _legend(),
        f'<div class="charts">{charts}</div>',
        _parts(plan),
        _paragraphs([*peaks(plan), *unplanned(plan)]),
        _paragraphs(time_lines(plan.time)),
        section("Assumptions", _paragraphs(assumptions(plan)), unfolded=True),
        section("Notices", _paragraphs(plan.notices), unfolded=True),
        *(section(f"Modules of stage {stage.stage}", _modules(stage)) for stage in plan.stages),
        section("Kernels", _kernels(plan)),
    ]
    return framed(title, "".join(content), STYLE)


def _highest(plan: Plan) -> int:
    """Return the top of the charts: the device's memory, unless the plan would be flat below it."""
    peak, memory = plan.peak_bytes, plan.device.memory or 0
    return memory if peak < memory <= FLAT * peak else peak


def _paragraphs(lines: Iterable[str]) -> str:
    text = "<br>".join(escape(line) for line in lines)
    return f"<p>{text}</p>" if text else ""


def _legend() -> str:
    items = [f'<li class="c{colour}">{escape(part)}</li>' for colour, part in enumerate(FOLLOWED)]
    items += ['<li class="peak">peak with reserve and process groups</li>', '<li class="limit">device memory</li>']
    return f'<ul class="legend">{"".join(items)}</ul>'


def _parts(plan: Plan) -> str:
    rows = [
        ("layers", *(stage.layers for stage in plan.stages)),
        ("parameters", *(count(stage.parameters) for stage in plan.stages)),
        *((f"{part}, GiB", *(gib(stage.parts.get(part, 0)) for stage in plan.stages)) for part in PARTS),
        ("peak, GiB", *(gib(stage.peak_bytes) for stage in plan.stages)),
        ("of it tensors, GiB", *(gib(stage.allocated_bytes) for stage in plan.stages)),
        ("most activations, GiB", *(gib(stage.most_activations) for stage in plan.stages)),
        ("host memory, GiB", *(gib(stage.host_bytes) for stage in plan.stages)),
    ]
    return table(["", *(f"stage {stage.stage}" for stage in plan.stages)], rows, style="numbers")


def _modules(stage: StagePlan) -> str:
    rows = [("\u00a0" * 4 * depth + label, *_cells(row)) for depth, label, row in nested(stage.modules)]
    name, number, parameters, weights, activations = HEAD
    return table(
        [name, number, parameters, f"{weights}, MiB", f"{activations} a micro-batch, MiB"], rows, style="numbers"
    )


def _cells(row: ModuleRow | None) -> tuple[str, str, str, str]:
    if row is None:
        return "", "", "", ""
    return str(row.count), count(row.parameters), f"{row.weights / MIB:,.1f}", f"{row.activations / MIB:,.1f}"


def _kernels(plan: Plan) -> str:
    return table(
        ["operation", "kernel", "provider"], [(row.operation, row.kernel, row.provider) for row in plan.kernels.rows]
    )
