"""Format the numbers of a run for people."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pretrain.observe.records import EvalRecord, TrainRecord


def train_line(record: TrainRecord, total_iterations: int) -> str:
    """Return one log line with the numbers that scripts usually parse."""
    parts = [
        f"iteration {record.iteration:>{len(str(total_iterations))}}/{total_iterations}",
        f"samples {record.consumed_samples}",
        f"loss {number(record.lm_loss, '.4f')}",
        f"lr {record.learning_rate:.3e}",
        f"grad norm {number(record.grad_norm, '.3f')}",
        None if record.loss_scale is None else f"loss scale {record.loss_scale:g}",
        None if record.params_norm is None else f"params norm {record.params_norm:.3f}",
        None if record.num_zeros_in_grad is None else f"zeros in grad {record.num_zeros_in_grad}",
        f"batch {record.global_batch_size}",
        f"{record.seconds_per_iteration:.3f} s/iteration",
        f"{record.samples_per_second:.2f} samples/s",
        f"{record.tokens_per_second_per_device:.0f} tokens/s/device",
        f"{record.tflops_per_device:.3g} TFLOP/s/device",
        None if record.mfu is None else f"MFU {100 * record.mfu:.1f} %",
        f"skipped {record.skipped_iterations}",
        f"nan {record.nan_iterations}",
        _slowest(record),
        None if record.memory_peak_bytes is None else f"memory {record.memory_peak_bytes / 2**30:.2f} GiB",
        f"left {duration(seconds_left(record, total_iterations))}",
    ]
    return " | ".join(part for part in parts if part)


_SHORTEST_STEP = 0.1
"""Seconds of a step from which a line names the slowest rank: in a shorter one a pause of the system makes any rank the
slowest. metrics.jsonl names it in any case, and a rank that stays slow is warned of."""


def _slowest(record: TrainRecord) -> str | None:
    if record.slowest_rank is None or record.slowdown is None or record.seconds_per_iteration < _SHORTEST_STEP:
        return None
    return f"slowest rank {record.slowest_rank} +{100 * record.slowdown:.0f} % {record.slowdown_cause}"


def evaluation_line(record: EvalRecord, total_iterations: int) -> str:
    """Return one line with loss and perplexity."""
    name = {"valid": "validation", "test": "test"}[record.split]
    where = f"iteration {record.iteration}/{total_iterations}"
    return f"{name} at {where} | loss {number(record.lm_loss, '.4f')} | ppl {number(record.ppl, '.4g')}"


def seconds_left(record: TrainRecord, total_iterations: int) -> float:
    """Return the time that the remaining iterations take at the speed of the interval."""
    return max(0, total_iterations - record.iteration) * record.seconds_per_iteration


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
