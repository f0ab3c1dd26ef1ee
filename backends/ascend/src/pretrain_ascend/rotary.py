"""Rotary position embedding in CANN's fused kernel, which keeps its input for the backward pass."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pretrain.plugins.offer import offer_unless
from pretrain_ascend import devices, software
from pretrain_ascend.devices import Family
from pretrain_ascend.kernels import chip_requirements

if TYPE_CHECKING:
    from pretrain.plugins.offer import Decline, Offer
    from pretrain.plugins.requests import RotaryRequest

NAME = "rotary_mul"

SMALLER_THAN, FEWER_HEADS = 896, 1000
FIRST_SIZE = 128
"""torch_npu-npu_rotary_mul.md: D and N from A2 on; the one D of the 910A family."""


def answers(request: RotaryRequest) -> Offer | Decline:
    """Return the one kernel, or the reason that it does not fit."""
    reason = chip_requirements.unsupported_reason(request) or _limits(request)
    return offer_unless(reason, name=NAME, build=_build, fake=_fake, provider=software.provider())


def _limits(request: RotaryRequest) -> str:
    family, size = devices.family_of(request.device_name), request.rotary_size
    if family is Family.FIRST and size != FIRST_SIZE:
        return f"rotary size {size} on chip family {family}; only {FIRST_SIZE}"
    if size >= SMALLER_THAN:
        return f"rotary size {size}; only below {SMALLER_THAN}"
    return f"{request.heads} heads; only fewer than {FEWER_HEADS}" if request.heads >= FEWER_HEADS else ""


def _build(_: object) -> Any:
    return import_module("pretrain_ascend.kernels.rotary").rotate


def _fake(_: object) -> Any:
    return import_module("pretrain_ascend.kernels.stand_ins.rotary").rotate
