"""Course of a stage's memory over a step, as stacked areas in SVG; the page's style sheet defines their colours."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from pretrain.report.page.axis import Axis
from pretrain.report.page.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, grid
from pretrain.tools.plan.stage_plan import PARTS
from pretrain.tools.plan.units import GIB, gib

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.tools.plan.stage_plan import StagePlan

X_LABEL = "share of the step's allocations and releases, not of its time"
FOLLOWED = PARTS[:5]
"""Parts whose course is known; the others are shown by a line above it."""
ROOM = 1.05
"""Height of the picture in that of its highest line."""


def area_chart(stage: StagePlan, memory: int | None, highest: int) -> str:
    """Return a figure: areas of the parts, a line at what the stage takes with its reserve, and one at the limit.

    Args:
        stage: with its course.
        memory: bytes of the device, with a line if they are not above the picture; None: not known.
        highest: bytes that the vertical axis reaches, the same in all figures of a page.
    """
    x_axis = Axis(0.0, 1.0, LEFT, WIDTH - RIGHT)
    y_axis = Axis(0.0, ROOM * highest / GIB, HEIGHT - BOTTOM, TOP)
    title = f"stage {stage.stage}: GiB over one step"
    lines = [_line("peak", stage.peak_bytes, y_axis, "peak with reserve and process groups")]
    if memory is not None and memory <= highest:
        lines.append(_line("limit", memory, y_axis, "memory of the device"))
    elif memory is not None:
        title += f"; the device's {gib(memory)} GiB are far above"
    body = "".join([*_areas(stage, x_axis, y_axis), *grid(x_axis, y_axis), *lines])
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{body}</svg>'
        f'<p class="axis-name">{escape(X_LABEL)}</p></figure>'
    )


def _areas(stage: StagePlan, x_axis: Axis, y_axis: Axis) -> list[str]:
    below = [0] * len(stage.course)
    areas = []
    for colour, part in enumerate(FOLLOWED):
        above = [base + moment.parts.get(part, 0) for base, moment in zip(below, stage.course, strict=True)]
        if above != below:
            points = " ".join([*_points(stage, above, x_axis, y_axis), *_points(stage, below, x_axis, y_axis)[::-1]])
            areas.append(f'<polygon class="c{colour}" points="{points}"><title>{escape(part)}</title></polygon>')
        below = above
    return areas


def _points(stage: StagePlan, sizes: Sequence[int], x_axis: Axis, y_axis: Axis) -> list[str]:
    places = zip(stage.course, sizes, strict=True)
    return [f"{x_axis.at(moment.at):.1f},{y_axis.at(size / GIB):.1f}" for moment, size in places]


def _line(style: str, size: int, y_axis: Axis, name: str) -> str:
    y = y_axis.at(size / GIB)
    return (
        f'<line class="{style}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}">'
        f"<title>{escape(name)}: {gib(size)} GiB</title></line>"
    )
