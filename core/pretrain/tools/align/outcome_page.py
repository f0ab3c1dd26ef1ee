"""Result of a comparison as one HTML page, with the differences over the depth of the model."""

from __future__ import annotations

from html import escape
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.atomic_files import replacing
from pretrain.errors import PretrainError
from pretrain.report.page.chart import Curve, chart
from pretrain.report.page.frame import framed, section
from pretrain.report.page.html_tables import table
from pretrain.tools.align.comparing.outcome import BACKWARD, FORWARD, GRADIENTS, UPDATE
from pretrain.tools.align.outcome_text import SIDES, headline, operations

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pretrain.tools.align.comparing.outcome import AlignResult
    from pretrain.tools.align.comparing.recording import Recording


STYLE = ".verdict { font-weight: 600; } .axis-name { color: var(--quiet); font-size: .8rem; }"

_CHARTS = (
    (FORWARD, "forward: outputs"),
    (BACKWARD, "backward: gradients of inputs"),
    (GRADIENTS, "gradients of parameters"),
    (UPDATE, "updates of parameters"),
)
_LEAST, _MOST = 1e-4, 1e6
"""Shares beyond these are drawn there, one that is no number at the top: the scale is logarithmic."""


def write_page(outcome: AlignResult, sides: Sequence[Recording], output: Path) -> None:
    """Write the page, atomically.

    Raises:
        PretrainError: it cannot be written.
    """
    with replacing(output, error=PretrainError) as stream:
        stream.write(page(outcome, sides).encode())


def page(outcome: AlignResult, sides: Sequence[Recording]) -> str:
    """Return the page: one file, without network access and scripts."""
    title = f"Alignment of {Path(sides[0].manifest['source']).name}"
    heads = (f"{name}: {side.title}; {side.versions}" for name, side in zip(SIDES, sides, strict=True))
    verdict, *more = headline(outcome, sides)
    content = [
        f"<h1>{escape(title)}</h1>",
        _paragraph(heads),
        f'<p class="verdict">{escape(verdict)}</p>',
        _paragraph(more),
        _legend(sides[0].layers),
        *(_charts(outcome, step) for step in range(1, sides[0].steps + 1)),
        section("Kernels", _kernels(sides), unfolded=True),
        section("Everything that differs", _differing(outcome)),
    ]
    return framed(title, "".join(content), STYLE)


def _legend(layers: int) -> str:
    return (
        '<p class="axis-name">Dots: the largest difference at each place of the model, as a part of what the dtype '
        f"explains there; the line at 1 is all of that. 0 is before the layers, {layers + 1} after them.</p>"
    )


def _paragraph(lines: Iterable[str]) -> str:
    text = "<br>".join(escape(line.strip()) for line in lines)
    return f"<p>{text}</p>" if text else ""


def _charts(outcome: AlignResult, step: int) -> str:
    drawn = "".join(_chart(outcome, step, phase, title) for phase, title in _CHARTS)
    return f'<h2>Step {step}</h2><div class="charts">{drawn}</div>'


def _chart(outcome: AlignResult, step: int, phase: int, title: str) -> str:
    found: dict[int, float] = {}
    for each in outcome.compared:
        if each.order[:2] == (step, phase) and each.place is not None:
            share = min(each.share, _MOST) if isfinite(each.share) else _MOST
            found[each.place.position] = max(found.get(each.place.position, _LEAST), share)
    curves = [
        Curve(name="explained", points=[(position, 1.0) for position in sorted(found)], colour=1),
        Curve(name="difference", points=sorted(found.items()), colour=0, marked=True),
    ]
    return chart(title, curves, logarithmic=True, x_name="place")


def _kernels(sides: Sequence[Recording]) -> str:
    rows = [(operation, *(side.kernel(operation) for side in sides)) for operation in operations(sides)]
    return table(["operation", *SIDES], rows)


def _differing(outcome: AlignResult) -> str:
    rows = [
        (
            str(each.step),
            each.phase,
            "" if each.place is None else str(each.place.position),
            each.what,
            f"{each.difference:.2g}",
            f"{each.explained:.2g}",
        )
        for each in outcome.compared
        if each.differs
    ]
    return table(["step", "phase", "place", "what", "difference", "explained"], rows) if rows else ""
