"""What a checkpoint counts, in the same words for every engine."""

from __future__ import annotations

from typing import TypedDict


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


class Counters(TypedDict):
    """What an optimizer counts.

    Attributes:
        step: optimizer steps taken, which Adam's bias correction depends on.
        loss_scaler: None without a dynamic loss scale.
    """

    step: int
    loss_scaler: LossScaler | None
