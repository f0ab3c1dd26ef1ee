"""Set megatron-core's dynamic loss scale in DeepSpeed's optimizers, so that both engines scale the loss equally.

DeepSpeed 0.19's own DynamicLossScaler first doubles a step late, halves the gradients of every step in
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
        hysteresis_tracker: overflows left until the scale is halved; 1 or less: the next one halves it.
    """

    scale: float
    growth_tracker: int
    hysteresis_tracker: int


class DynamicLossScale:
    """Loss scale that is halved after `hysteresis` overflows and doubled after `loss_scale_window` steps without one.

    It behaves as megatron.core.optimizer.grad_scaler.DynamicGradScaler, with the interface of a ZeRO optimizer's
    `loss_scaler`.
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
        """Count a step that was taken.

        This is separate from `update_scale`, which ZeRO's `step` calls before `unscale_and_clip_grads` divides the
        gradients by the current scale: doubling the scale there would halve them.
        """
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


def install(optimizer: Any, precision: PrecisionSection) -> DynamicLossScale | None:
    """Set the loss scale of a ZeRO optimizer for fp16; return None if the scale is fixed or not used."""
    if precision.dtype != "fp16" or precision.loss_scale is not None:
        return None
    scale = DynamicLossScale(precision)
    optimizer.loss_scaler = scale
    return scale
