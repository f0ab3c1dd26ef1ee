"""Layer norm and RMS norm: torch's layer norm is CANN's kernel; RMS norm has an operator of its own.

npu_add_layer_norm and npu_add_rms_norm, which add a residual first, do not fit: the residual is added elsewhere.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from pretrain.plugins.offer import offer_unless
from pretrain.reference.norm import TorchNorm
from pretrain_ascend import devices, software
from pretrain_ascend.devices import Family
from pretrain_ascend.kernels import chip_requirements

if TYPE_CHECKING:
    from pretrain.plugins.offer import Decline, Offer
    from pretrain.plugins.requests import NormRequest


def answers(request: NormRequest) -> list[Offer | Decline]:
    """Return the kernels for a request, each for one kind."""
    return [_layer_norm(request), _rms_norm(request)]


def _layer_norm(request: NormRequest) -> Offer | Decline:
    reason = chip_requirements.unsupported_reason(request) or chip_requirements.one_dtype(
        request.dtype, request.weight_dtype
    )
    if request.kind != "LayerNorm":
        reason = f"kind {request.kind}; only LayerNorm"
    return offer_unless(
        reason,
        name="layer_norm",
        build=lambda _: TorchNorm(request),
        fake=_fake_layer_norm,
        provider=software.provider(),
    )


def _fake_layer_norm(_: object) -> Any:
    return import_module("pretrain_ascend.kernels.stand_ins.norm").layer_norm


def _rms_norm(request: NormRequest) -> Offer | Decline:
    reason = chip_requirements.unsupported_reason(request) or _weights(request)
    if request.kind != "RMSNorm":
        reason = f"kind {request.kind}; only RMSNorm"

    def build(_: object) -> Any:
        return import_module("pretrain_ascend.kernels.rms_norm").RmsNorm(request)

    return offer_unless(reason, name="rms_norm", build=build, fake=build, provider=software.provider())


def _weights(request: NormRequest) -> str:
    """Return the reason against the weights' dtype, or "": fp32 for fp16 or bf16 only from A2 on (npu_rms_norm.md)."""
    family = devices.family_of(request.device_name)
    if family is not None and family >= Family.A2 and request.weight_dtype is torch.float32:
        return ""
    return chip_requirements.one_dtype(request.dtype, request.weight_dtype)
