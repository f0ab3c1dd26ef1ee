"""megatron-core's dynamic loss scale for DeepSpeed's optimizers, so that one recipe has one scale on both engines.

DeepSpeed 0.19's own (runtime/fp16/loss_scaler.py 187) first doubles a step late, halves the gradients of every step in
which it doubles, stops a run that overflows at the smallest scale, and knows only powers of two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.recipe.sections.precision import PrecisionSection


class LossScaler(TypedDict):
    """A dynamic loss scale, as megatron-core's DynamicGradScaler keeps it.

    Attributes:
        scale: factor of the loss.
        growth_tracker: steps without an overflow since the last overflow or doubling.
        hysteresis_tracker: overflows that are left until the scale is halved; 1 or less: the next one.
    """

    scale: float
    growth_tracker: int
    hysteresis_tracker: int


class DynamicLossScale:
    """Halved after `hysteresis` overflows, doubled after `loss_scale_window` steps without one.

    As megatron.core.optimizer.grad_scaler.DynamicGradScaler, with what a ZeRO optimizer asks of its `loss_scaler`.
    """

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
        """Return the loss that is differentiated."""
        return loss * self.cur_scale

    def update_scale(self, overflow: bool) -> None:
        """Take notice of an overflow; `count_step` of a step without one."""
        if not overflow:
            return
        self._growth = 0
        self._hysteresis -= 1
        if self._hysteresis <= 0:
            self.cur_scale = max(self.cur_scale / 2, self._precision.min_loss_scale)

    def count_step(self) -> None:
        """Take notice of a step that was taken.

        ZeRO calls `update_scale` before it unscales the gradients by the scale that it then finds, which would halve
        them had it been doubled (zero/stage_1_and_2.py 3047 and 3198, stage3.py 2826 and 2981).
        """
        self._growth += 1
        if self._growth == self._precision.loss_scale_window:
            self._growth = 0
            self._hysteresis = self._precision.hysteresis
            self.cur_scale *= 2

    @property
    def counts(self) -> LossScaler:
        """What a checkpoint holds of it."""
        return {"scale": self.cur_scale, "growth_tracker": self._growth, "hysteresis_tracker": self._hysteresis}

    @counts.setter
    def counts(self, counts: LossScaler) -> None:
        self.cur_scale = counts["scale"]
        self._growth = counts["growth_tracker"]
        self._hysteresis = counts["hysteresis_tracker"]


def install(optimizer: Any, precision: PrecisionSection) -> DynamicLossScale | None:
    """Give a ZeRO optimizer for fp16 its loss scale; return None where the scale is fixed, or there is none."""
    if precision.dtype != "fp16" or precision.loss_scale is not None:
        return None
    scale = DynamicLossScale(precision)
    optimizer.loss_scaler = scale
    return scale
