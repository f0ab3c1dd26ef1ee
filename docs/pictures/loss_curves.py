"""Draw loss_curves.svg from loss_curves.json: `python docs/pictures/loss_curves.py`.

The upper panel has the loss of every layout; all curves share one line, which is dashed in their colours. The lower
panel has the relative difference of each to one process. train_layouts.py makes the numbers.
"""

from __future__ import annotations

import json
from pathlib import Path

from drawing import COLOURS, LEFT, RIGHT, curve, entry, height_line, picture, text, x_of, y_of

FOLDER = Path(__file__).parent
BASE = "one process"
UPPER, LOWER = (48, 270), (316, 396)
"""Top and bottom of the panels, in pixels."""
LOSS_RANGE, DIFFERENCE_RANGE = (5.0, 9.5), (0.0, 2e-7)
LOSS_TICKS, DIFFERENCE_TICKS, ITERATION_TICKS = (5, 6, 7, 8, 9), (0, 1, 2), (1, 20, 40, 60, 80, 100)
DASH = 7


def differences(losses: list[float], base: list[float]) -> list[float]:
    """Return the relative difference of each loss to the one of the same iteration in `base`."""
    return [abs(loss - other) / other for loss, other in zip(losses, base, strict=True)]


def line(values: list[float], extent: tuple[float, float], panel: tuple[int, int], style: str) -> str:
    """Return a curve with a value for each iteration."""
    last = len(values) - 1
    return curve(((x_of(place / last), y_of(value, extent, panel)) for place, value in enumerate(values)), style)


def grid(last: int) -> list[str]:
    """Return the axes of both panels with their labels."""
    drawn = []
    for panel, extent, ticks, unit in (
        (UPPER, LOSS_RANGE, LOSS_TICKS, 1.0),
        (LOWER, DIFFERENCE_RANGE, DIFFERENCE_TICKS, 1e-7),
    ):
        for tick in ticks:
            drawn += height_line(y_of(tick * unit, extent, panel), f"{tick}e-7" if unit < 1 and tick else str(tick))
    drawn += [text(x_of((tick - 1) / (last - 1)), LOWER[1] + 18, str(tick), "middle") for tick in ITERATION_TICKS]
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
        words = f"{name}: {values[-1]:.6f} at the end"
        drawn += entry(440, UPPER[0] + 8 + 20 * number, f'{colour} stroke-width="4"', words)
    return picture(LOWER[1] + 48, drawn)


def main() -> None:
    """Draw the losses that are kept."""
    kept = json.loads((FOLDER / "loss_curves.json").read_text(encoding="utf-8"))
    (FOLDER / "loss_curves.svg").write_text(draw(kept["losses"]), encoding="utf-8")


if __name__ == "__main__":
    main()
