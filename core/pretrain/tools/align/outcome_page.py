"""Result of a comparison as one HTML page, with the differences over the depth of the model."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.errors import PretrainError
from pretrain.report.page import html
from pretrain.report.page.svg import ChartLine, chart
from pretrain.tools.align.comparing.outcome import BACKWARD, FORWARD, GRADIENTS, UPDATE
from pretrain.tools.align.outcome_text import SIDES, headline, operations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.tools.align.comparing.outcome import AlignResult
    from pretrain.tools.align.comparing.recording import Recording

_CHARTS = (
    (FORWARD, "forward: outputs"),
    (BACKWARD, "backward: gradients of inputs"),
    (GRADIENTS, "gradients of parameters"),
    (UPDATE, "updates of parameters"),
)
_AXIS = (
    "Dots: the largest difference at each place of the model, as a part of what the dtype explains there; the line at "
    "1 is all of that. 0 is before the layers, {after} after them."
)
_LEAST, _MOST = 1e-4, 1e6
"""Shares beyond these are drawn there, one that is no number at the top: the scale is logarithmic."""


def write_page(outcome: AlignResult, sides: Sequence[Recording], output: Path) -> None:
    """Write the page, atomically."""
    html.write_page(page(outcome, sides), output, PretrainError)


def page(outcome: AlignResult, sides: Sequence[Recording]) -> str:
    """Return the page."""
    title = f"Alignment of {Path(sides[0].manifest['source']).name}"
    heads = (f"{name}: {side.title}; {side.versions}" for name, side in zip(SIDES, sides, strict=True))
    verdict, *more = headline(outcome, sides)
    parts = [
        html.paragraph(heads),
        html.paragraph([verdict], "verdict"),
        html.paragraph(line.strip() for line in more),
        html.paragraph([_AXIS.format(after=sides[0].layers + 1)], "axis-name"),
    ]
    for step in range(1, sides[0].steps + 1):
        charts = html.charts(_chart(outcome, step, phase, title) for phase, title in _CHARTS)
        parts.append(f"<h2>Step {step}</h2>{charts}")
    kernels = [(operation, *(side.kernel(operation) for side in sides)) for operation in operations(sides)]
    parts.append(html.section("Kernels", html.table(["operation", *SIDES], kernels), unfolded=True))
    parts.append(html.section("Everything that differs", _differing(outcome)))
    return html.framed(title, parts)


def _chart(outcome: AlignResult, step: int, phase: int, title: str) -> str:
    found: dict[int, float] = {}
    for each in outcome.compared:
        if each.order[:2] == (step, phase) and each.place is not None:
            share = min(each.share, _MOST) if isfinite(each.share) else _MOST
            found[each.place.position] = max(found.get(each.place.position, _LEAST), share)
    curves = [
        ChartLine(name="explained", points=[(position, 1.0) for position in sorted(found)], colour=1),
        ChartLine(name="difference", points=sorted(found.items()), colour=0, marked=True),
    ]
    return chart(title, curves, logarithmic=True, x_name="place")


def _differing(outcome: AlignResult) -> str:
    rows = []
    for each in outcome.compared:
        if each.differs:
            place = "" if each.place is None else str(each.place.position)
            numbers = f"{each.difference:.2g}", f"{each.explained:.2g}"
            rows.append((str(each.step), each.phase, place, each.what, *numbers))
    return html.table(["step", "phase", "place", "what", "difference", "explained"], rows)
