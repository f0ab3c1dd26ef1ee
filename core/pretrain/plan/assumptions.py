"""Assumptions of a plan, in short lines for its reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.plan.units import gib

if TYPE_CHECKING:
    from pretrain.plan.plan import Plan
    from pretrain.plan.time.step_time import StepTime


def assumptions(plan: Plan) -> list[str]:
    """Return the lines about memory, then those about time."""
    return [*_of_memory(plan), *(() if plan.time is None else _of_time(plan.time))]


def _of_memory(plan: Plan) -> list[str]:
    lines = ["reserve: what torch's caching allocator holds beyond the tensors, block by block"]
    if plan.device.backend_name == "cpu":
        return [*lines, "all ranks share this machine, of whose memory each has an equal part"]
    groups = plan.stages[0].parts.get("process groups", 0)
    if groups:
        context = gib(plan.device.figures.context_memory or 0)
        lines.append(
            f"process groups: {gib(groups)} GiB, of which {context} GiB are the process's context on the device"
        )
    else:
        lines.append("process groups, and what a process takes before its first tensor: not known, counted as 0")
    return [*lines, "no other program uses the devices"]


def _of_time(time: StepTime) -> list[str]:
    best, worst = time.best, time.worst
    shares = [
        f"{name} {100 * getattr(worst, key):.0f} to {100 * getattr(best, key):.0f} %"
        for name, key in (("matmuls", "matmul"), ("memory", "memory"), ("links", "links"))
    ]
    return [
        f"share of the device's figures that a training reaches: {', '.join(shares)}",
        *(f"not counted: {line}" for line in time.left_out),
    ]
