"""What a checkpoint counts, in the same words for every engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from pretrain.bridge.zero_scale import LossScaler


class Counters(TypedDict):
    """What an optimizer counts.

    Attributes:
        step: optimizer steps taken, which Adam's bias correction depends on.
        loss_scaler: None without a dynamic loss scale.
    """

    step: int
    loss_scaler: LossScaler | None
