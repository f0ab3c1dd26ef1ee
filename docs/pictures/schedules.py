"""Draw schedules.svg, the learning rates of all schedules: `python docs/pictures/schedules.py`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import get_args

from drawing import COLOURS, LEFT, curve, entry, height_line, picture, text, x_of, y_of

from pretrain.recipe import make_recipe
from pretrain.recipe.sections.optimizer import ScheduleSection

FOLDER = Path(__file__).parent
PANEL, LAST = (48, 300), 1000
RECIPE = {
    "model": {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "seq_length": 8},
    "tokenizer": {"type": "bytes"},
    "data": {"path": "corpus"},
    "train": {"micro_batch_size": 1, "global_batch_size": 1, "train_iters": LAST},
    "optimizer": {"lr": 1.0},
}


def schedules() -> dict[str, dict[str, object]]:
    """Return section `schedule` of each line, by its name."""
    fields, common = ScheduleSection.model_fields, {"lr_warmup_iters": 100, "min_lr": 0.1}
    styles = [style for style in get_args(fields["lr_decay_style"].annotation) if style != "WSD"]
    of_wsd = get_args(fields["lr_wsd_decay_style"].annotation)
    wsd = {"lr_decay_style": "WSD", "lr_wsd_decay_iters": 250}
    found: dict[str, dict[str, object]] = {style: common | {"lr_decay_style": style} for style in styles}
    found["constant"].pop("min_lr")
    return found | {f"WSD, {style}": common | wsd | {"lr_wsd_decay_style": style} for style in of_wsd}


def rates(schedule: dict[str, object]) -> list[float]:
    """Return the learning rate of every tenth iteration."""
    from pretrain.engine.schedule import build_schedule  # noqa: PLC0415  megatron-core's

    group: dict[str, float] = {
        "wd_mult": 1.0,
        "lr_mult": 1.0,
        "max_lr": 1.0,
        "min_lr": float(str(schedule.get("min_lr", 0))),
    }
    scheduler = build_schedule(make_recipe({**RECIPE, "schedule": schedule}), SimpleNamespace(param_groups=[group]))
    found = []
    for _ in range(0, LAST + 1, 10):
        found.append(group["lr"])
        scheduler.step(increment=10)
    return found


def draw() -> str:
    """Return the picture as SVG."""
    (top, bottom), drawn = PANEL, []
    drawn.append(text(LEFT, top - 22, "learning rate, as a part of optimizer.lr; 100 of 1000 iterations warm up"))
    for tick in (0.0, 0.5, 1.0):
        drawn += height_line(y_of(tick, (0, 1), PANEL), str(tick))
    for number, (name, schedule) in enumerate(schedules().items()):
        style = f'stroke="{COLOURS[number % len(COLOURS)]}" stroke-width="2"'
        style += ' stroke-dasharray="6 4"' * name.startswith("WSD")
        values = rates(schedule)
        points = ((x_of(10 * place / LAST), y_of(rate, (0, 1), PANEL)) for place, rate in enumerate(values))
        drawn.append(curve(points, style))
        drawn += entry(LEFT + 190 * (number % 4), bottom + 40 + 20 * (number // 4), style, name)
    drawn += [text(x_of(tick / 4), bottom + 18, str(tick * LAST // 4), "middle") for tick in range(5)]
    return picture(bottom + 84, drawn)


if __name__ == "__main__":
    (FOLDER / "schedules.svg").write_text(draw(), encoding="utf-8")
