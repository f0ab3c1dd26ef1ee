"""Draw optimizers.svg from optimizers.json: `python docs/pictures/optimizers.py`.

`python docs/pictures/optimizers.py RUN...` takes the losses of runs of the quickstart first, by optimizer and learning
rate.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TypedDict

from drawing import COLOURS, LEFT, curve, entry, height_line, picture, text, x_of, y_of

from pretrain.recipe.load import load_recipe

FOLDER = Path(__file__).parent
PANEL = (48, 320)
EXTENT, TICKS = (3.7, 9.5), (4, 5, 6, 7, 8, 9)


class Curve(TypedDict):
    """Losses of a run: [iteration, loss] of the training, and of the validation."""

    train: list[tuple[int, float]]
    valid: list[tuple[int, float]]


Curves = dict[str, dict[str, Curve]]  # optimizer -> learning rate -> losses


def curves_of(runs: list[Path]) -> Curves:
    """Return the losses of runs."""
    found: Curves = {}
    for run in runs:
        optimizer = load_recipe(run / "recipe.yml").optimizer
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        kinds = {
            "train": [(line["iteration"], line["lm_loss"]) for line in lines if line["kind"] == "train"],
            "valid": [(line["iteration"], line["lm_loss"]) for line in lines if line.get("split") == "valid"],
        }
        found.setdefault(optimizer.name, {})[f"{optimizer.lr:g}"] = Curve(train=kinds["train"], valid=kinds["valid"])
    return found


def best(curves: dict[str, Curve]) -> str:
    """Return the learning rate with the lowest last validation."""
    return min(curves, key=lambda rate: curves[rate]["valid"][-1][1])


def draw(curves: Curves) -> str:
    """Return the picture as SVG: the best learning rate of each optimizer drawn out, the others dashed."""
    (top, bottom), drawn = PANEL, []
    drawn.append(text(LEFT, top - 22, "training loss of the quickstart over 500 iterations"))
    for tick in TICKS:
        drawn += height_line(y_of(tick, EXTENT, PANEL), str(tick))
    last = max(point[0] for of_rate in curves.values() for each in of_rate.values() for point in each["train"])
    drawn += [text(x_of(tick / 5), bottom + 18, str(tick * last // 5), "middle") for tick in range(6)]
    entries = [(name, rate) for name, of_rate in curves.items() for rate in sorted(of_rate, key=float)]
    for number, (name, rate) in enumerate(entries):
        found, is_best = curves[name][rate], rate == best(curves[name])
        style = f'stroke="{COLOURS[1 + 2 * list(curves).index(name)]}" stroke-width="{3 if is_best else 1}"'
        style += "" if is_best else f' stroke-dasharray="{2 + 4 * (number % 3)} 4"'
        points = ((x_of(iteration / last), y_of(loss, EXTENT, PANEL)) for iteration, loss in found["train"])
        drawn.append(curve(points, style))
        words = f"{name}, lr {rate}: validation {found['valid'][-1][1]:.3f}"
        drawn += entry(470, top + 8 + 20 * number, style, words)
    return picture(bottom + 36, drawn)


def main() -> None:
    """Keep the losses of the runs that are given, and draw."""
    kept = FOLDER / "optimizers.json"
    if sys.argv[1:]:
        kept.write_text(json.dumps(curves_of([Path(run) for run in sys.argv[1:]])) + "\n", encoding="utf-8")
    (FOLDER / "optimizers.svg").write_text(draw(json.loads(kept.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
