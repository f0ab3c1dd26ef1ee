"""Estimated time of a step, in lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.plan.units import count, span

if TYPE_CHECKING:
    from pretrain.tools.plan.time.step_time import Range, StepTime

UNITS = {"days": 1, "hours": 24, "minutes": 24 * 60, "seconds": 24 * 3600}
"""Units of a training's length, in a day."""
UNKNOWN = "step time: not known, since the device's peak FLOP/s or its memory's bandwidth is not"


def time_lines(time: StepTime | None) -> list[str]:
    """Return the step's time, the speed, and the whole training's time where the recipe says its length."""
    if time is None:
        return [UNKNOWN]
    shares = (("bubble", time.bubble), ("communication", time.communication), ("update", time.update))
    parts = ", ".join(f"{name} {100 * share:.1f} %" for name, share in shares)
    flops = f"{span(time.flops_per_second, 1e-12)} model TFLOP/s, {span(time.peak_share, 100)} % of the peak"
    lines = [
        f"step: {span(time.seconds)} s ({parts})",
        *time.unknown_links,
        f"speed of a device: {span(time.tokens_per_second)} tokens/s, {flops}",
    ]
    if time.days is not None and time.device_hours is not None and time.tokens:
        length = f"{_length(time.days)}, {span(time.device_hours)} device-hours"
        lines.append(f"training: {count(time.tokens)} tokens in {length}")
    return lines


def _length(days: Range) -> str:
    """Return the length in the largest unit of which it has one at least."""
    unit = next((unit for unit, parts in UNITS.items() if days.low * parts >= 1), "seconds")
    return f"{span(days, UNITS[unit])} {unit}"
