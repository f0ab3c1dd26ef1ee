"""Draw optimizers.svg from optimizers.json: `python docs/pictures/optimizers.py`.

`python docs/pictures/optimizers.py RUN...` takes the losses of runs of the quickstart first, by optimizer and learning
rate.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TypedDict

from loss_curves import COLOURS, LEFT, RIGHT, WIDTH, text, y_of

from pretrain.recipe.load import load_recipe

FOLDER = Path(__file__).parent
TOP, BOTTOM = 48, 320
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
    drawn = [text(LEFT, TOP - 22, "training loss of the quickstart over 500 iterations")]
    for tick in TICKS:
        y = y_of(tick, EXTENT, (TOP, BOTTOM))
        drawn.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{RIGHT}" y2="{y:.1f}" stroke="#dddddd"/>')
        drawn.append(text(LEFT - 8, y + 4, str(tick), "end"))
    last = max(point[0] for of_rate in curves.values() for curve in of_rate.values() for point in curve["train"])
    drawn += [text(LEFT + (RIGHT - LEFT) * tick / 5, BOTTOM + 18, str(tick * last // 5), "middle") for tick in range(6)]
    entries = [(name, rate) for name, of_rate in curves.items() for rate in sorted(of_rate, key=float)]
    for number, (name, rate) in enumerate(entries):
        curve, is_best = curves[name][rate], rate == best(curves[name])
        style = f'stroke="{COLOURS[1 + 2 * list(curves).index(name)]}" stroke-width="{3 if is_best else 1}"'
        style += "" if is_best else f' stroke-dasharray="{2 + 4 * (number % 3)} 4"'
        places = (
            f"{LEFT + (RIGHT - LEFT) * iteration / last:.1f},{y_of(loss, EXTENT, (TOP, BOTTOM)):.1f}"
            for iteration, loss in curve["train"]
        )
        drawn.append(f'<polyline fill="none" {style} points="{" ".join(places)}"/>')
        y = TOP + 8 + 20 * number
        drawn.append(f'<line x1="470" y1="{y}" x2="496" y2="{y}" {style}/>')
        drawn.append(text(504, y + 4, f"{name}, lr {rate}: validation {curve['valid'][-1][1]:.3f}"))
    height = BOTTOM + 36
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    background = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', background, *drawn, "</svg>"]) + "\n"


def main() -> None:
    """Keep the losses of the runs that are given, and draw."""
    kept = FOLDER / "optimizers.json"
    if sys.argv[1:]:
        kept.write_text(json.dumps(curves_of([Path(run) for run in sys.argv[1:]])) + "\n", encoding="utf-8")
    (FOLDER / "optimizers.svg").write_text(draw(json.loads(kept.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
