"""Format the numbers of a run for people."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pretrain.report.metric_table import console_parts

if TYPE_CHECKING:
    from pretrain.report.records import EvalRecord, TrainRecord


def train_line(record: TrainRecord, total_iterations: int) -> str:
    """Return one log line with the numbers that scripts usually parse."""
    parts = [
        f"iteration {record.iteration:>{len(str(total_iterations))}}/{total_iterations}",
        f"samples {record.consumed_samples}",
        *console_parts(record.metrics),
        f"left {duration(seconds_left(record, total_iterations))}",
    ]
    return " | ".join(parts)


def evaluation_line(record: EvalRecord, total_iterations: int) -> str:
    """Return one line with loss and perplexity."""
    name = {"valid": "validation", "test": "test"}[record.split]
    where = f"iteration {record.iteration}/{total_iterations}"
    return f"{name} at {where} | loss {number(record.lm_loss, '.4f')} | ppl {number(record.ppl, '.4g')}"


def seconds_left(record: TrainRecord, total_iterations: int) -> float:
    """Return the time that the remaining iterations take at the speed of the interval."""
    seconds: float = record.metrics["seconds_per_iteration"]
    return max(0, total_iterations - record.iteration) * seconds


def number(value: float | None, form: str) -> str:
    """Return the formatted value; "nan" for None."""
    return "nan" if value is None or math.isnan(value) else format(value, form)


def duration(seconds: float) -> str:
    """Return 0:42, 1:02:03 or 3d 04:05:06."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"
