"""Rotary position embedding in one Triton kernel.

apex's extension fused_rotary_positional_embedding is not offered: its call changed between versions, and its Python
wrapper left apex with apex.transformer. torch.compile makes a kernel like this one, seconds after the start.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pretrain.plugins.offer import offer_unless
from pretrain_cuda.kernels import triton_requirements

if TYPE_CHECKING:
    from pretrain.plugins.offer import Decline, Offer
    from pretrain.plugins.requests import RotaryRequest

NAME = "triton"


def answers(request: RotaryRequest) -> Offer | Decline:
    """Return the one kernel, or the reason that it does not fit."""
    reason = triton_requirements.unsupported_reason(request)
    return offer_unless(reason, name=NAME, build=_build, provider=triton_requirements.provider(), fake=_fake)


def _fake(_: object) -> Any:
    return import_module("pretrain_cuda.kernels.stand_ins.rotary").triton()


def _build(_: object) -> Any:
    return import_module("pretrain_cuda.kernels.triton.rotary").rotate
