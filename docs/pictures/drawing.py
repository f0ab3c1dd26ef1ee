"""Parts of the pictures, as SVG."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

COLOURS = ("#222222", "#0072b2", "#009e73", "#e69f00", "#d55e00", "#cc79a7")
WIDTH, LEFT, RIGHT = 820, 64, 800
FONT = 'font-family="sans-serif" font-size="12"'


def x_of(part: float) -> float:
    """Return the horizontal position of a part of the width, 0 to 1."""
    return LEFT + part * (RIGHT - LEFT)


def y_of(value: float, extent: tuple[float, float], panel: tuple[int, int]) -> float:
    """Return the vertical position of a value in a panel, from its top to its bottom, that shows `extent`."""
    return panel[1] - (value - extent[0]) / (extent[1] - extent[0]) * (panel[1] - panel[0])


def curve(points: Iterable[tuple[float, float]], style: str) -> str:
    """Return a line through points."""
    return f'<polyline fill="none" {style} points="{" ".join(f"{x:.1f},{y:.2f}" for x, y in points)}"/>'


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    """Return a text that starts, or with another anchor ends or is centred, at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" {FONT} fill="#222222" text-anchor="{anchor}">{words}</text>'


def height_line(y: float, words: str) -> list[str]:
    """Return a line across a panel, named at its left end."""
    line = f'<line x1="{LEFT}" y1="{y:.1f}" x2="{RIGHT}" y2="{y:.1f}" stroke="#dddddd"/>'
    return [line, text(LEFT - 8, y + 4, words, "end")]


def entry(x: int, y: int, style: str, words: str) -> list[str]:
    """Return a piece of a curve, and what it is."""
    return [f'<line x1="{x}" y1="{y}" x2="{x + 26}" y2="{y}" {style}/>', text(x + 34, y + 4, words)]


def picture(height: int, drawn: Iterable[str]) -> str:
    """Return everything that is drawn as one file."""
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    background = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', background, *drawn, "</svg>"]) + "\n"
