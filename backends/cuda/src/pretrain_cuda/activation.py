"""Bias and activation of the MLP in one Triton kernel.

liger-kernel's SwiGLU is not offered: it takes two contiguous halves and no bias, so that the halves would be copied.
torch.compile makes a kernel like this one, seconds after the start.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pretrain.plugins.offer import offer_unless
from pretrain_cuda.kernels import triton_requirements

if TYPE_CHECKING:
    from pretrain.plugins.offer import Decline, Offer
    from pretrain.plugins.requests import ActivationRequest

NAME = "triton"


def answers(request: ActivationRequest) -> Offer | Decline:
    """Return the one kernel, or the reason that it does not fit."""
    reason = triton_requirements.unsupported_reason(request)
    return offer_unless(
        reason,
        name=NAME,
        build=lambda _: _build(request),
        provider=triton_requirements.provider(),
        fake=lambda _: _fake(request),
    )


def _fake(request: ActivationRequest) -> Any:
    return import_module("pretrain_cuda.kernels.stand_ins.activation").triton(request)


def _build(request: ActivationRequest) -> Any:
    return import_module("pretrain_cuda.kernels.triton.activation").Activation(request)
