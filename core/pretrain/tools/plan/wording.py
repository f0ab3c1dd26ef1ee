"""Words and numbers of a plan: assumptions, the step's time, units; and its JSON values, as docs/plan.md has them."""

from __future__ import annotations

from dataclasses import asdict
from math import fsum
from typing import TYPE_CHECKING, Any

from pretrain.tools.plan.step_time import Range, figure

if TYPE_CHECKING:
    from pretrain.tools.plan.device import PlanDevice
    from pretrain.tools.plan.plan import Plan
    from pretrain.tools.plan.stage_plan import StagePlan
    from pretrain.tools.plan.step_time import StepTime

GIB = 2**30
MIB = 2**20

UNITS = {"days": 1, "hours": 24, "minutes": 24 * 60, "seconds": 24 * 3600}  # of a training's length, in a day


def assumptions(plan: Plan) -> list[str]:
    """Return the lines about memory, then those about time."""
    lines = ["reserve: what torch's caching allocator holds beyond the tensors, replayed block by block"]
    groups = plan.stages[0].parts.get("process groups", 0)
    if plan.device.backend_name == "cpu":
        lines.append("all ranks share this machine; each has an equal part of its memory")
    elif groups:
        context = f"{gib(plan.device.figures.context_memory or 0)} GiB are the process's context on the device"
        lines.append(f"process groups: {gib(groups)} GiB, of which {context}")
    else:
        lines.append("process groups, and what a process takes before its first tensor: unknown, counted as 0")
    if plan.device.backend_name != "cpu":
        lines.append("no other program uses the devices")
    if plan.layout.expert_model_parallel_size is not None:
        lines.append(_of_experts(plan))
    if plan.recipe.precision.fp8 is not None:
        lines.append(_of_fp8(plan))
    if plan.costs is not None:
        lines.append(
            "a checkpoint is written and read by all ranks at once, at the rate of the storage; "
            "failures come at any time, as often as given"
        )
    return lines if plan.time is None else [*lines, *_of_time(plan.device, plan.time)]


def _of_fp8(plan: Plan) -> str:
    """Return the line about the speed of matmuls in fp8, and which of them are."""
    dtype, peak = plan.recipe.precision.dtype, plan.device.peak_flops_fp8
    kernels = kernels_by_operation(plan)
    emulated = [name for name in ("linear", "grouped_linear") if EMULATES in kernels.get(name, ())]
    share = _share_in_fp8(plan)
    if not share:
        return f"fp8 is emulated: matmuls take as long as in {dtype}, and rounding their operands comes on top"
    speed = f"as long as in {dtype}, since their speed is unknown" if peak is None else f"{figure(peak / 1e12)} TFLOP/s"
    text = f"matmuls in fp8, {100 * share:.0f} % of all FLOPs: {speed}; rounding operands takes its memory traffic"
    return f"{text}; {' and '.join(emulated)}: emulated, in {dtype}" if emulated else text


EMULATES = "reference"  # the kernel that rounds to fp8 and multiplies in the training's dtype


def _share_in_fp8(plan: Plan) -> float:
    """Return the share of the FLOPs of forward and backward passes that kernels in fp8 have, 0 to 1."""
    costs = [each for stage in plan.stages for each in (stage.costs.forward, stage.costs.backward)]
    flops = [(operation.dtype, operation.flops * number) for each in costs for operation, number in each.items()]
    return fsum(each for dtype, each in flops if dtype == "fp8") / (fsum(each for _, each in flops) or 1.0)


def _of_experts(plan: Plan) -> str:
    """Return the line about the load of the experts, on which the rows of a rank depend."""
    model, ranks = plan.recipe.model, plan.layout.expert_model_parallel_size or 1
    held = (model.num_experts or 0) // ranks
    most = ranks * min(model.moe_router_topk, held) / model.moe_router_topk
    most = most if model.moe_expert_capacity_factor is None else min(most, model.moe_expert_capacity_factor)
    kept = max(
        sum(row.activations for row in stage.modules if f"{row.name}.".endswith(_MLP) or _EXPERTS in f"{row.name}.")
        for stage in plan.stages
    )
    text = f"the load of the experts is even; of a micro batch they keep {gib(kept)} GiB"
    return text if most <= 1 else f"{text}, and with all tokens on one rank {figure(most)} times that"


_MLP, _EXPERTS = ".mlp.", ".mlp.experts."  # exchanged rows, and those between the linears


def figures_text(device: PlanDevice) -> str:
    """Return the figures behind the time; those that are not the backend's have their source."""
    figures, tera = device.figures, device.peak_flops and device.peak_flops / 1e12
    values = {
        "peak_flops": "matmuls " + ("unknown" if tera is None else f"{figure(tera)} TFLOP/s"),
        "memory_bandwidth": f"memory {_speed(figures.memory_bandwidth)}",
        "link_bandwidth": f"inside a node {_speed(figures.link_bandwidth)}",
        "node_bandwidth": f"between nodes {_speed(figures.node_bandwidth)}",
        "devices_per_node": f"{figures.devices_per_node} device{'s' * (figures.devices_per_node != 1)} a node",
    }
    sourced = [text + (f" ({device.sources[name]})" if name in device.sources else "") for name, text in values.items()]
    return f"device figures, from the table of backend {device.backend_name}: {', '.join(sourced)}"


def _speed(bandwidth: float | None) -> str:
    return "unknown" if bandwidth is None else f"{figure(bandwidth / 1e9)} GB/s"


def _of_time(device: PlanDevice, time: StepTime) -> list[str]:
    names = (("matmuls", "matmul"), ("memory", "memory"), ("links", "links"))
    ranges = {name: Range(getattr(time.worst, key), getattr(time.best, key)) for name, key in names}
    shares = [f"{name} {span(each, 100)} %" for name, each in ranges.items()]
    who = f"{time.measured_in} reached, scaled by one factor" if time.measured_in else "trainings reach"
    return [
        figures_text(device),
        f"share of these figures that {who}: {', '.join(shares)}",
        *(f"not counted: {line}" for line in time.left_out),
    ]


def time_lines(time: StepTime | None) -> list[str]:
    """Return the step's time, the speed, and the whole training's time where the recipe says its length."""
    if time is None:
        return ["step time: unknown, because the device's peak FLOP/s or its memory's bandwidth is unknown"]
    shares = (("bubble", time.bubble), ("communication", time.communication), ("update", time.update))
    parts = ", ".join(f"{name} {100 * share:.1f} %" for name, share in shares)
    flops = f"{span(time.flops_per_second, 1e-12)} model TFLOP/s, {span(time.peak_share, 100)} % of the peak"
    lines = [
        f"step: {span(time.seconds)} s ({parts})",
        *time.unknown_links,
        f"speed of a device: {span(time.tokens_per_second)} tokens/s, {flops}",
    ]
    if time.days is not None and time.device_hours is not None and time.tokens:
        unit = next((unit for unit, parts in UNITS.items() if time.days.low * parts >= 1), "seconds")
        length = f"{span(time.days, UNITS[unit])} {unit}, {span(time.device_hours)} device-hours"
        lines.append(f"training: {count(time.tokens)} tokens in {length}")
    return lines


def gib(size: float, decimals: int | None = None) -> str:
    """Return bytes in GiB, without the unit: "47.3", "0.420"; by default with the decimals of the size itself."""
    if decimals is None:
        decimals = decimals_of(size) if size else 0
    return f"{size / GIB:.{decimals}f}"


def decimals_of(size: float) -> int:
    """Return the decimals with which a size in GiB has about three digits."""
    return 1 if size >= 10 * GIB else 2 if size >= GIB else 3


def count(value: float) -> str:
    """Return a large number: "2.8 G", "604 M", "12288"."""
    for size, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.3g} {suffix}"
    return f"{value:.0f}"


def span(values: Range, scale: float = 1.0) -> str:
    """Return a range: "38.1 to 61.4"; one number if both ends read the same."""
    low, high = figure(values.low * scale), figure(values.high * scale)
    return low if low == high else f"{low} to {high}"


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return the plan; sizes in bytes, times in seconds, days and hours, ranges as {"low": ..., "high": ...}."""
    layout, device = plan.layout, plan.device
    names = ("memory_bandwidth", "link_bandwidth", "node_bandwidth", "devices_per_node")
    peaks = {"peak_flops": device.peak_flops, "peak_flops_fp8": device.peak_flops_fp8}
    figures = {**peaks, **{name: getattr(device.figures, name) for name in names}}
    return {
        "recipe": plan.recipe.source,
        "backend": device.backend_name,
        "device": device.name,
        "memory_bytes": device.memory,
        "figures": {**figures, "sources": dict(device.sources)},
        "peak_bytes": plan.peak_bytes,
        "fits": plan.fits,
        "enough_devices": plan.enough_devices,
        "vocab_size": plan.vocab_size,
        "layout": {
            **asdict(layout),
            "layers_of_chunks": list(layout.layers_of_chunks),
            "num_microbatches": layout.num_microbatches(plan.recipe.train.global_batch_size),
        },
        "kernels": kernels_by_operation(plan),
        "stages": [_stage(stage) for stage in plan.stages],
        "time": None if plan.time is None else asdict(plan.time),
        "costs": None if plan.costs is None else plan.costs.values(),
        "assumptions": assumptions(plan),
        "notices": list(plan.notices),
    }


def kernels_by_operation(plan: Plan) -> dict[str, list[str]]:
    """Return the kernels of each operation, each once."""
    kernels: dict[str, list[str]] = {}
    for row in plan.kernels.rows:
        if row.kernel not in kernels.setdefault(row.operation, []):
            kernels[row.operation].append(row.kernel)
    return kernels


def _stage(stage: StagePlan) -> dict[str, Any]:
    names = ("stage", "rank", "layers", "parameters", "peak_bytes", "allocated_bytes", "host_bytes", "micro_batches")
    return {
        **{name: getattr(stage, name) for name in names},
        "most_activations_bytes": stage.most_activations,
        "parts": dict(stage.parts),
        "peak_at": stage.peak_at,
        "modules": [asdict(row) for row in stage.modules],
    }
