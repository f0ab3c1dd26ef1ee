"""Line charts as SVG; the page's style sheet defines their colours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from pretrain.report.page.axis import covering, label

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pretrain.report.page.axis import Axis
    from pretrain.report.page.run_data import Point

WIDTH, HEIGHT = 560, 270
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 10, 26
"""Margins around the lines, for the labels of the axes."""
_MOST_POINTS = 800
COLOURS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One line of a chart.

    Attributes:
        name: shown when the pointer rests on the line.
        points: x and y; a y of None leaves a gap.
        colour: 0 to `COLOURS` - 1; a run has the same colour on all charts.
        marked: draw a dot at each point, and the line between them dashed.
    """

    name: str
    points: Sequence[Point]
    colour: int
    marked: bool = False


def chart(
    title: str,
    curves: Sequence[Curve],
    *,
    logarithmic: bool = False,
    from_zero: bool = False,
    x_name: str = "iteration",
) -> str:
    """Return a figure with all curves, or "" if none of them has a point.

    Args:
        title: name of the numbers, with the unit.
        curves: drawn in order.
        logarithmic: allow a logarithmic scale, used if the values differ by more than a factor of 30.
        from_zero: the vertical axis begins at 0, so that small differences look small.
        x_name: name of the numbers on the horizontal axis, where the pointer rests on a point.
    """
    xs = [x for curve in curves for x, y in curve.points if y is not None]
    ys = [y for curve in curves for _, y in curve.points if y is not None]
    if not ys:
        return ""
    x_axis = covering(xs, LEFT, WIDTH - RIGHT, margin=0)
    y_axis = covering([0.0, *ys] if from_zero else ys, HEIGHT - BOTTOM, TOP, logarithmic=logarithmic)
    body = "".join([*grid(x_axis, y_axis), *(_draw(curve, x_axis, y_axis, x_name) for curve in curves)])
    title += ", logarithmic" if y_axis.logarithmic else ""
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{body}</svg></figure>'
    )


def grid(x_axis: Axis, y_axis: Axis) -> Iterator[str]:
    """Yield the lines and labels of both axes."""
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for tick in y_axis.ticks():
        y = y_axis.at(tick)
        yield f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{label(tick)}</text>'
    for tick in x_axis.ticks():
        x = x_axis.at(tick)
        anchor = "end" if x > right - 14 else "middle"
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="{anchor}">{label(tick)}</text>'
    yield f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>'


def _draw(curve: Curve, x_axis: Axis, y_axis: Axis, x_name: str) -> str:
    parts = [f'<g class="curve c{curve.colour % COLOURS}{" marked" if curve.marked else ""}">']
    parts.append(f"<title>{escape(curve.name)}</title>")
    for piece in _pieces(thin(curve.points)):
        at = [(x_axis.at(x), y_axis.at(y)) for x, y in piece]
        parts.append(f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in at)}"/>')
        if curve.marked or len(piece) == 1:
            parts += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{escape(curve.name)}, {x_name} {label_x:g}: '
                f"{value:.6g}</title></circle>"
                for (x, y), (label_x, value) in zip(at, piece, strict=True)
            ]
    return "".join([*parts, "</g>"])


def _pieces(points: Sequence[Point]) -> Iterator[list[tuple[float, float]]]:
    """Yield the runs of points between gaps."""
    piece: list[tuple[float, float]] = []
    for x, y in [*points, (math.inf, None)]:
        if y is not None:
            piece.append((x, y))
        elif piece:
            yield piece
            piece = []


def thin(points: Sequence[Point], most: int = _MOST_POINTS) -> list[Point]:
    """Return about `most` points: the lowest and the highest of each stretch, so that no spike is lost, and gaps."""
    if len(points) <= most:
        return list(points)
    stretch = math.ceil(2 * len(points) / most)
    return [point for first in range(0, len(points), stretch) for point in _extremes(points[first : first + stretch])]


def _extremes(points: Sequence[Point]) -> list[Point]:
    """Return the lowest point, the highest one and the first gap, in the order of the curve."""
    known = [(y, index) for index, (_, y) in enumerate(points) if y is not None]
    gaps = [index for index, (_, y) in enumerate(points) if y is None]
    kept = {*gaps[:1], *([min(known)[1], max(known)[1]] if known else [])}
    return [points[index] for index in sorted(kept)]
