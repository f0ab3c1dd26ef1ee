"""Assumptions of a plan, in short lines for its reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.plan.time.step_time import Range
from pretrain.tools.plan.units import figure, gib, span

if TYPE_CHECKING:
    from pretrain.tools.plan.device import PlanDevice
    from pretrain.tools.plan.plan import Plan
    from pretrain.tools.plan.time.step_time import StepTime


def assumptions(plan: Plan) -> list[str]:
    """Return the lines about memory, then those about time."""
    return [*_of_memory(plan), *(() if plan.time is None else _of_time(plan.device, plan.time))]


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


def figures_text(device: PlanDevice) -> str:
    """Return the figures of which the time is made; the source of each that is not the backend's in parentheses."""
    figures, tera = device.figures, device.peak_flops and device.peak_flops / 1e12
    values = {
        "peak_flops": "matmuls " + ("not known" if tera is None else f"{figure(tera)} TFLOP/s"),
        "memory_bandwidth": f"memory {_speed(figures.memory_bandwidth)}",
        "link_bandwidth": f"inside a node {_speed(figures.link_bandwidth)}",
        "node_bandwidth": f"between nodes {_speed(figures.node_bandwidth)}",
        "devices_per_node": f"{figures.devices_per_node} device{'s' * (figures.devices_per_node != 1)} a node",
    }
    sourced = [text + (f" ({device.sources[name]})" if name in device.sources else "") for name, text in values.items()]
    return f"figures of a device, by the table of backend {device.backend_name}: {', '.join(sourced)}"


def _speed(bandwidth: float | None) -> str:
    return "not known" if bandwidth is None else f"{figure(bandwidth / 1e9)} GB/s"


def _of_time(device: PlanDevice, time: StepTime) -> list[str]:
    shares = [
        f"{name} {span(Range(100 * getattr(time.worst, key), 100 * getattr(time.best, key)))} %"
        for name, key in (("matmuls", "matmul"), ("memory", "memory"), ("links", "links"))
    ]
    who = "a training reaches"
    if time.measured_in:
        who = f"{time.measured_in} reached, by one factor for all three"
    return [
        figures_text(device),
        f"share of these figures that {who}: {', '.join(shares)}",
        *(f"not counted: {line}" for line in time.left_out),
    ]
