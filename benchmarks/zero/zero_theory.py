"""Memory of a model's states by the ZeRO paper, with the bytes that each engine keeps.

Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, arXiv 1910.02054, sections 3.1
and 5 and figure 1: of weights, gradients and the optimizer's state, stage 1 splits the last over the data-parallel
ranks, stage 2 the gradients too, stage 3 the weights too. The paper counts 2 + 2 + 12 bytes for Adam with fp16.
"""

from __future__ import annotations

WEIGHTS = {"fp32": 4, "bf16": 2}
MOMENTS, MAIN_WEIGHTS = 8, 4  # fp32: Adam's two moments; what it steps


def theory(system: str, dtype: str, ranks: int) -> float:
    """Return the bytes per parameter of weights, gradients and optimizer state together, on each rank."""
    stage = int(system.split("ZeRO-")[1][0]) if "ZeRO" in system else 0
    return round(split(stage, ranks, *kept(system, dtype)), 2)


def split(stage: int, ranks: int, weights: float, gradients: float, optimizer: float) -> float:
    """Return the bytes of each rank after the split."""
    return (
        weights / (ranks if stage >= 3 else 1)
        + gradients / (ranks if stage >= 2 else 1)
        + optimizer / (ranks if stage >= 1 else 1)
    )


def kept(system: str, dtype: str) -> tuple[int, int, int]:
    """Return the bytes per parameter of weights, gradients and optimizer state, before they are split.

    Gradients: fp32, also for bf16 weights (precision.grad_reduce_in_fp32, the default); but DeepSpeed's stage 0 has
    them in the weights' dtype. Optimizer: in fp32 the weights are stepped themselves, by the megatron engine and at
    stage 0; DeepSpeed's stages 1 to 3 step a copy (0.19.8, DeepSpeedZeroOptimizer.__init__; at stage 3
    _create_fp32_partitions is meant to avoid it, but compares a torch.device with a string).
    """
    gradients = WEIGHTS[dtype] if system == "ZeRO-0" else 4
    copies = dtype != "fp32" or (system.startswith("ZeRO-") and system != "ZeRO-0")
    return WEIGHTS[dtype], gradients, MOMENTS + (MAIN_WEIGHTS if copies else 0)
