"""Plan of a training as plain JSON values; their names are stable, and described in docs/plan.md."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pretrain.tools.plan.wording import assumptions

if TYPE_CHECKING:
    from pretrain.tools.plan.plan import Plan
    from pretrain.tools.plan.stage_plan import StagePlan


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return the plan; sizes in bytes, times in seconds, days and hours, ranges as {"low": ..., "high": ...}."""
    layout, device = plan.layout, plan.device
    names = ("memory_bandwidth", "link_bandwidth", "node_bandwidth", "devices_per_node")
    figures = {name: getattr(device.figures, name) for name in names}
    return {
        "recipe": plan.recipe.source,
        "backend": device.backend_name,
        "device": device.name,
        "memory_bytes": device.memory,
        "figures": {"peak_flops": device.peak_flops, **figures, "sources": dict(device.sources)},
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
