"""DeepSpeed's dynamic loss scale in megatron-core's counts (deepspeed/runtime/fp16/loss_scaler.py 187-250)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pretrain.engine.counters import LossScaler


def loss_scaler_of(optimizer: Any) -> LossScaler | None:
    """Return the counts; None where the scale is fixed or there is none."""
    scaler = getattr(optimizer, "loss_scaler", None)
    if scaler is None or not scaler.dynamic:
        return None
    return {
        "scale": float(scaler.cur_scale),
        "growth_tracker": (scaler.cur_iter - scaler.last_overflow_iter - 1) % scaler.scale_window,
        "hysteresis_tracker": scaler.cur_hysteresis,
    }


def set_loss_scaler(optimizer: Any, counts: LossScaler | None) -> None:
    """Go on from counts; nothing happens where the scale is fixed or there is none."""
    scaler = getattr(optimizer, "loss_scaler", None)
    if counts is None or scaler is None or not scaler.dynamic:
        return
    scaler.cur_scale = counts["scale"]
    scaler.cur_iter = counts["growth_tracker"]
    scaler.last_overflow_iter = -1
    scaler.cur_hysteresis = max(1, counts["hysteresis_tracker"])


def keep_going_at_smallest_scale(optimizer: Any) -> None:
    """Skip a step that overflows at the smallest scale, as megatron-core does; DeepSpeed would raise in the step."""
    scaler = getattr(optimizer, "loss_scaler", None)
    if scaler is not None and scaler.dynamic:
        scaler.raise_error_at_min_scale = False
