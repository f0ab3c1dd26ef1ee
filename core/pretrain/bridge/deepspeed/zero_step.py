"""Changes to a step of DeepSpeed's optimizers: the loss scale, a sticky overflow flag, an update that is withheld.

Their loss scale is megatron-core's, so that both engines scale the loss equally. DeepSpeed 0.19's own DynamicLossScaler
first doubles a step late, halves the gradients of every step in which it doubles, stops a run that overflows at the
smallest scale, and knows only powers of two.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypedDict

import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from pretrain.plugins.backend import Overflow
    from pretrain.recipe.sections.precision import PrecisionSection


def watch_overflow(optimizer: Any, overflow: Overflow) -> None:
    """Let an fp16 optimizer skip a step, and lower its loss scale, if any rank of the world has set the flag."""
    # ZeRO's optimizers check gradients in their own `has_overflow` (called by `_check_overflow`); FP16_Optimizer and
    # FP16_UnfusedOptimizer, without ZeRO, in that of their `overflow_checker` (CheckOverflow).
    checker = getattr(optimizer, "overflow_checker", optimizer)
    check: Callable[..., bool] = checker.has_overflow

    @functools.wraps(check)
    def has_overflow(*args: Any, **kwargs: Any) -> bool:
        flag = overflow.read()
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return check(*args, **kwargs) or bool(flag.item())

    checker.has_overflow = has_overflow


def drop_gradients(optimizer: Any, stage: int) -> None:
    """Forget the gradients of all micro-batches after the last backward pass; weights, moments and loss scale stay."""
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


class LossScaler(TypedDict):
    """A dynamic loss scale, as megatron-core's DynamicGradScaler keeps it."""

    scale: float
    growth_tracker: int  # steps without an overflow since the last overflow or doubling
    hysteresis_tracker: int  # overflows left until the scale is halved; 1 or less: the next one halves it


class DynamicLossScale:
    """megatron-core's DynamicGradScaler with the interface of a ZeRO optimizer's `loss_scaler`."""

    dynamic = True

    def __init__(self, precision: PrecisionSection) -> None:
        self._precision = precision
        self.cur_scale = precision.initial_loss_scale
        self._growth = 0
        self._hysteresis = precision.hysteresis

    @property
    def loss_scale(self) -> float:
        """Factor of the loss."""
        return self.cur_scale

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Return the scaled loss, for the backward pass."""
        return loss * self.cur_scale

    def update_scale(self, overflow: bool) -> None:
        """Count an overflow; `count_step` counts a step without one."""
        if not overflow:
            return
        self._growth = 0
        self._hysteresis -= 1
        if self._hysteresis <= 0:
            self.cur_scale = max(self.cur_scale / 2, self._precision.min_loss_scale)

    def count_step(self) -> None:
        """Count a step that was taken."""
        # ZeRO calls `update_scale` before it divides the gradients by the scale: to double it there would halve them.
        self._growth += 1
        if self._growth == self._precision.loss_scale_window:
            self._growth = 0
            self._hysteresis = self._precision.hysteresis
            self.cur_scale *= 2

    @property
    def counts(self) -> LossScaler:
        """State for a checkpoint."""
        return {"scale": self.cur_scale, "growth_tracker": self._growth, "hysteresis_tracker": self._hysteresis}

    @counts.setter
    def counts(self, counts: LossScaler) -> None:
        self.cur_scale = counts["scale"]
        self._growth = counts["growth_tracker"]
        self._hysteresis = counts["hysteresis_tracker"]


def set_loss_scale(optimizer: Any, precision: PrecisionSection) -> DynamicLossScale | None:
    """Set the loss scale of a ZeRO optimizer for fp16; return None if the scale is fixed or not used."""
    if precision.dtype != "fp16" or precision.loss_scale is not None:
        return None
    scale = DynamicLossScale(precision)
    optimizer.loss_scaler = scale
    return scale
