"""Charts as SVG, the only writer of them: lines and stacked areas; the page's style sheet defines their colours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

Point = tuple[float, float | None]

WIDTH, HEIGHT = 560, 270
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 10, 26  # margins around the lines, for the labels of the axes
_MOST_POINTS = 800
COLOURS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class ChartLine:
    """One line of a chart; a y of None leaves a gap."""

    name: str
    points: Sequence[Point]
    colour: int  # 0 to `COLOURS` - 1; a run has the same colour on all charts
    marked: bool = False  # a dot at each point, and the line between them dashed


def chart(
    title: str,
    curves: Sequence[ChartLine],
    *,
    logarithmic: bool = False,
    from_zero: bool = False,
    x_name: str = "iteration",
) -> str:
    """Return a figure of all curves, "" without a point; logarithmic only if values differ by a factor over 30."""
    xs = [x for curve in curves for x, y in curve.points if y is not None]
    ys = [y for curve in curves for _, y in curve.points if y is not None]
    if not ys:
        return ""
    x_axis = covering(xs, LEFT, WIDTH - RIGHT, margin=0)
    y_axis = covering([0.0, *ys] if from_zero else ys, HEIGHT - BOTTOM, TOP, logarithmic=logarithmic)
    body = "".join([*_grid(x_axis, y_axis), *(_draw(curve, x_axis, y_axis, x_name) for curve in curves)])
    title += ", logarithmic" if y_axis.logarithmic else ""
    return _figure(title, body)


@dataclass(frozen=True, slots=True)
class Level:
    """A horizontal line across a chart: its class in the style sheet, its height and its name."""

    style: str
    height: float
    name: str


def stacked_areas(
    title: str,
    xs: Sequence[float],
    heights: Mapping[str, Sequence[float]],
    levels: Iterable[Level],
    *,
    top: float,
    x_name: str,
) -> str:
    """Return a figure of areas that lie on each other, the lowest first, over x from 0 to 1 (ascending)."""
    x_axis, y_axis = Axis(0.0, 1.0, LEFT, WIDTH - RIGHT), Axis(0.0, top, HEIGHT - BOTTOM, TOP)

    def corners(ys: Sequence[float]) -> list[str]:
        return [f"{x_axis.at(x):.1f},{y_axis.at(y):.1f}" for x, y in zip(xs, ys, strict=True)]

    parts, below = [], [0.0] * len(xs)
    for colour, (name, added) in enumerate(heights.items()):
        above = [low + height for low, height in zip(below, added, strict=True)]
        if above != below:
            points = " ".join([*corners(above), *corners(below)[::-1]])
            parts.append(f'<polygon class="c{colour}" points="{points}"><title>{escape(name)}</title></polygon>')
        below = above
    parts += _grid(x_axis, y_axis)
    for level in levels:
        y = y_axis.at(level.height)
        line = f'<line class="{level.style}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}">'
        parts.append(f"{line}<title>{escape(level.name)}</title></line>")
    return _figure(title, "".join(parts), x_name)


@dataclass(frozen=True, slots=True)
class Share:
    """A piece of a bar."""

    name: str
    short: str  # where there is no room for the name
    size: float
    colour: int  # 0 to `COLOURS` - 1
    pieces: Sequence[Share] = ()  # below it; their sizes have its size as their sum


_BAR_WIDTH, _BAR, _BAR_HEAD, _LETTER = 1120, 26, 24, 6.4


def bars(title: str, rows: Sequence[tuple[str, Sequence[Share]]]) -> str:
    """Return a figure with a bar under each heading, as wide as the page: shares, and below them their pieces."""
    body, y = [], 0
    for heading, shares in rows:
        body.append(f'<text class="heading" x="0" y="{y + 15}">{escape(heading)}</text>')
        whole = sum(share.size for share in shares) or 1.0
        body += _bar(shares, whole, y + _BAR_HEAD, "share")
        pieces = [piece for share in shares for piece in share.pieces]
        body += _bar(pieces, whole, y + _BAR_HEAD + _BAR, "piece")
        y += _BAR_HEAD + 2 * _BAR + 12
    svg = f'<svg viewBox="0 0 {_BAR_WIDTH} {y}" role="img" aria-label="{escape(title)}">{"".join(body)}</svg>'
    return f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>"


def _bar(shares: Iterable[Share], whole: float, y: float, style: str) -> Iterator[str]:
    x = 0.0
    for share in shares:
        width = _BAR_WIDTH * share.size / whole
        text = f"{share.name} {share.size / whole:.1%}"
        yield (
            f'<g class="{style} c{share.colour % COLOURS}"><rect x="{x:.1f}" y="{y}" width="{width:.1f}" '
            f'height="{_BAR}"><title>{escape(text)}</title></rect>'
        )
        letters = int((width - 8) / _LETTER)
        cut = f"{share.short[: letters - 1]}\N{HORIZONTAL ELLIPSIS}" if letters > 4 else ""
        if shown := next((each for each in (text, share.short) if len(each) <= letters), cut):
            yield f'<text x="{x + 4:.1f}" y="{y + 17}">{escape(shown)}</text>'
        yield "</g>"
        x += width


def _figure(title: str, body: str, x_name: str = "") -> str:
    name = f'<p class="axis-name">{escape(x_name)}</p>' if x_name else ""
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{body}</svg>{name}</figure>'
    )


def _grid(x_axis: Axis, y_axis: Axis) -> Iterator[str]:
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


def _draw(curve: ChartLine, x_axis: Axis, y_axis: Axis, x_name: str) -> str:
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


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of numbers drawn from pixel `start` to pixel `end`; on a logarithmic scale `low` is positive."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """Return the pixel of a number."""
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return round numbers within the range, three or more."""
        if self.logarithmic:
            return self._powers()
        step = _round_step((self.high - self.low) / 6)
        first = math.ceil(self.low / step - 1e-9)
        return [index * step for index in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def _powers(self) -> list[float]:
        exponents = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
        if len(exponents) >= 3:
            return [10.0**exponent for exponent in exponents][:: max(1, len(exponents) // 6)]
        finer = (factor * 10.0**power for power in range(exponents.start - 1, exponents.stop) for factor in (1, 2, 5))
        return [tick for tick in finer if self.low <= tick <= self.high]


def covering(values: list[float], start: float, end: float, *, logarithmic: bool = False, margin: float = 0.05) -> Axis:
    """Return an axis on which all values lie, with some room on both sides."""
    low, high = min(values), max(values)
    if logarithmic and low > 0 and high / low > 30:
        room = (high / low) ** margin
        return Axis(low / room, high * room, start, end, logarithmic=True)
    room = (high - low) * margin or abs(high) * margin or 1.0 if margin or high == low else 0.0
    return Axis(low - room, high + room, start, end)


def label(value: float) -> str:
    """Return the label of a tick: 1500, 0.25, 12M, 3e-5."""
    if value == 0:
        return "0"
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            unit = 1e3 if suffix == "k" else size
            return f"{value / unit:.4g}{suffix}"
    if abs(value) < 1e-3:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:.4g}"


def _round_step(rough: float) -> float:
    """Return the smallest of 1, 2, 2.5, 5, 10 times a power of ten that is not below `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
