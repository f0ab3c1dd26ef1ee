"""Drop the gradients of a step whose update is not made, as DeepSpeed's optimizers do after an overflow."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def drop_gradients(optimizer: Any, stage: int) -> None:
    """Forget the gradients of all micro-batches; weights, moments and loss scale stay.

    Args:
        optimizer: result of `deepspeed.initialize`, after the last backward pass of a step.
        stage: of ZeRO.
    """
    if stage == 3:
        optimizer._pre_step()  # noqa: SLF001  DeepSpeedZeroOptimizer_Stage3.step up to its overflow
        optimizer._partition_all_parameters()  # noqa: SLF001
        optimizer._overflow_clean_up(optimizer.loss_scale)  # noqa: SLF001
    elif hasattr(optimizer, "averaged_gradients"):
        _drop_flat(optimizer)
    else:
        optimizer.zero_grad()


def _drop_flat(optimizer: Any) -> None:
    """Do what DeepSpeedZeroOptimizer.step does up to its overflow, and after it."""
    optimizer.micro_step_id = import_module("deepspeed.runtime.zero.stage_1_and_2").INITIAL_MICRO_STEP_ID
    optimizer._wait_for_offload_copies()  # noqa: SLF001
    optimizer.zero_grad(set_to_none=True)
    optimizer._release_preflattened_grad_buffers()  # noqa: SLF001
    if optimizer.cpu_offload:
        optimizer._offload_accumulated_param_ids = set()  # noqa: SLF001
        optimizer.reset_cpu_buffers()
        return
    for key in optimizer.averaged_gradients:
        optimizer.averaged_gradients[key] = None
        optimizer.all_grad_tensors[key] = None
