"""Two layers on DeepSpeed, trained on text of this rank, with any accelerator."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from pretrain.bridge import deepspeed as bridge

STEPS = 3


@dataclass(frozen=True)
class Case:
    """A training; `zero` are more keys of `zero_optimization`, `more` of the configuration."""

    stage: int
    dtype: str = "fp32"
    zero: dict[str, object] = field(default_factory=dict)
    more: dict[str, object] = field(default_factory=dict)

    def config(self):
        """Return DeepSpeed's configuration; nothing in it makes DeepSpeed compile its CPU Adam."""
        precision = {"enabled": True}
        if self.dtype == "fp16":
            precision |= {"initial_scale_power": 8, "hysteresis": 1, "loss_scale_window": 1000}
        return {
            "train_micro_batch_size_per_gpu": 4,
            "gradient_clipping": 0.05,
            "zero_optimization": {"stage": self.stage, "memory_efficient_linear": False, **self.zero},
            "zero_force_ds_cpu_optimizer": False,
            **({} if self.dtype == "fp32" else {self.dtype: precision}),
            **self.more,
        }


BF16_OPTIMIZER = Case(1, "bf16", more={"data_types": {"grad_accum_dtype": "fp32"}})
"""What ZeRO-1 is by default in bf16; DeepSpeed has an optimizer of its own for it."""
OFFLOADED = {"offload_optimizer": {"device": "cpu", "pin_memory": False}}


class Alone:
    """DeepSpeed's mpu of a rank that shares nothing with the others of its world."""

    def __init__(self):
        groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
        group = groups[dist.get_rank()]
        for kind in ("model", "data"):
            setattr(self, f"get_{kind}_parallel_group", lambda: group)
            setattr(self, f"get_{kind}_parallel_rank", lambda: 0)
            setattr(self, f"get_{kind}_parallel_world_size", lambda: 1)


def train(case, backend, *, mpu=None, overflow=None, data=0, steps=STEPS):
    """Return of each step its loss, gradient norm, loss scale, whether it was skipped and whether it changed weights.

    Args:
        case: what is trained.
        backend: of the device; this process has joined a world.
        mpu: None for data parallelism over the world.
        overflow: a sticky flag that may be raised after a step's backward pass: `overflow.raise_in(step)`.
        data: which text; ranks of one data-parallel group have different ones.
        steps: how many.
    """
    deepspeed = bridge.install(backend)
    bridge.connect(backend)
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    engine, zero, _, _ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=case.config(), mpu=mpu, dist_init_required=False
    )
    if overflow is not None:
        from pretrain.bridge.deepspeed.zero_step import watch_overflow

        watch_overflow(zero, overflow)
    generator = torch.Generator().manual_seed(100 + data)
    curve = []
    try:
        for step in range(steps):
            before = own_weights(model)
            inputs = torch.randn(4, 8, generator=generator).to(next(model.parameters()).dtype)
            if overflow is not None:
                overflow.clear()
            loss = engine(inputs).float().square().mean()
            engine.backward(loss)
            if overflow is not None:
                overflow.raise_in(step)
            engine.step()
            norm = engine.get_global_grad_norm()
            curve.append(
                {
                    "loss": loss.item(),
                    "norm": None if norm is None else float(norm),
                    "scale": getattr(zero, "loss_scale", None),
                    "skipped": not engine.was_step_applied(),
                    "changed": not torch.equal(own_weights(model), before),
                }
            )
    finally:
        engine.destroy()
        bridge.disconnect()
    return curve


def own_weights(model):
    """Return a copy of this rank's weights in one tensor: all of them, or its part of each with ZeRO-3."""
    parts = [getattr(parameter, "ds_tensor", parameter) for parameter in model.parameters()]
    return torch.cat([part.detach().flatten().clone() for part in parts])
