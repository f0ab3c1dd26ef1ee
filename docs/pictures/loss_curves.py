"""Draw loss_curves.svg from loss_curves.json: `python docs/pictures/loss_curves.py`.

The upper panel has the loss of every layout; all curves share one line, which is dashed in their colours. The lower
panel has the relative difference of each to one process. train_layouts.py makes the numbers.
"""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).parent
BASE = "one process"
COLOURS = ("#222222", "#0072b2", "#009e73", "#e69f00", "#d55e00", "#cc79a7")
WIDTH, LEFT, RIGHT = 820, 64, 800
UPPER, LOWER = (48, 270), (316, 396)
"""Top and bottom of the panels, in pixels."""
LOSS_RANGE, DIFFERENCE_RANGE = (5.0, 9.5), (0.0, 2e-7)
LOSS_TICKS, DIFFERENCE_TICKS, ITERATION_TICKS = (5, 6, 7, 8, 9), (0, 1, 2), (1, 20, 40, 60, 80, 100)
DASH = 7
FONT = 'font-family="sans-serif" font-size="12"'


def differences(losses: list[float], base: list[float]) -> list[float]:
    """Return the relative difference of each loss to the one of the same iteration in `base`."""
    return [abs(loss - other) / other for loss, other in zip(losses, base, strict=True)]


def x_of(iteration: float, last: int) -> float:
    """Return the horizontal position of an iteration, counted from 1."""
    return LEFT + (iteration - 1) / (last - 1) * (RIGHT - LEFT)


def y_of(value: float, extent: tuple[float, float], panel: tuple[int, int]) -> float:
    """Return the vertical position of a value in a panel that shows `extent`."""
    return panel[1] - (value - extent[0]) / (extent[1] - extent[0]) * (panel[1] - panel[0])


def line(values: list[float], extent: tuple[float, float], panel: tuple[int, int], style: str) -> str:
    """Return a curve with a value for each iteration."""
    places = (
        f"{x_of(iteration, len(values)):.1f},{y_of(value, extent, panel):.2f}"
        for iteration, value in enumerate(values, 1)
    )
    return f'<polyline fill="none" {style} points="{" ".join(places)}"/>'


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    """Return a text that starts, or with another anchor ends or is centred, at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" {FONT} fill="#222222" text-anchor="{anchor}">{words}</text>'


def grid(last: int) -> list[str]:
    """Return the axes of both panels with their labels."""
    drawn = []
    for panel, extent, ticks, unit in (
        (UPPER, LOSS_RANGE, LOSS_TICKS, 1.0),
        (LOWER, DIFFERENCE_RANGE, DIFFERENCE_TICKS, 1e-7),
    ):
        for tick in ticks:
            y = y_of(tick * unit, extent, panel)
            drawn.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{RIGHT}" y2="{y:.1f}" stroke="#dddddd"/>')
            drawn.append(text(LEFT - 8, y + 4, f"{tick}e-7" if unit < 1 and tick else str(tick), "end"))
    drawn += [text(x_of(tick, last), LOWER[1] + 18, str(tick), "middle") for tick in ITERATION_TICKS]
    drawn.append(text((LEFT + RIGHT) / 2, LOWER[1] + 36, "iteration", "middle"))
    drawn.append(text(LEFT, UPPER[0] - 22, "training loss of one recipe (fp32) in six layouts"))
    drawn.append(text(LEFT, LOWER[0] - 14, "relative difference to one process; 1.2e-7 is the resolution of fp32"))
    return drawn


def draw(losses: dict[str, list[float]]) -> str:
    """Return the picture as SVG."""
    last = len(losses[BASE])
    drawn = grid(last)
    for number, (name, values) in enumerate(losses.items()):
        colour = f'stroke="{COLOURS[number]}"'
        dashes = f'stroke-dasharray="{DASH} {DASH * (len(losses) - 1)}" stroke-dashoffset="{-DASH * number}"'
        drawn.append(line(values, LOSS_RANGE, UPPER, f'{colour} stroke-width="3" {dashes}'))
        difference = differences(values, losses[BASE])
        if name != BASE:
            drawn.append(line(difference, DIFFERENCE_RANGE, LOWER, f'{colour} stroke-width="1.2"'))
        y = UPPER[0] + 8 + 20 * number
        drawn.append(f'<line x1="440" y1="{y}" x2="466" y2="{y}" {colour} stroke-width="4"/>')
        drawn.append(text(474, y + 4, f"{name}: {values[-1]:.6f} at the end"))
    size = f'width="{WIDTH}" height="{LOWER[1] + 48}" viewBox="0 0 {WIDTH} {LOWER[1] + 48}"'
    background = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', background, *drawn, "</svg>"]) + "\n"


def main() -> None:
    """Draw the losses that are kept."""
    kept = json.loads((FOLDER / "loss_curves.json").read_text(encoding="utf-8"))
    (FOLDER / "loss_curves.svg").write_text(draw(kept["losses"]), encoding="utf-8")


if __name__ == "__main__":
    main()
