"""residual + dropout(x + bias) in one Triton kernel.

torch.compile makes a kernel like this one, seconds after the start; it decides itself on storing the dropout mask.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pretrain.plugins.offer import offer_unless
from pretrain_cuda.kernels import triton_requirements

if TYPE_CHECKING:
    from pretrain.plugins.offer import Decline, Offer
    from pretrain.plugins.requests import BiasDropoutAddRequest

NAME = "triton"


def answers(request: BiasDropoutAddRequest) -> Offer | Decline:
    """Return the one kernel, or the reason that it does not fit."""
    reason = triton_requirements.unsupported_reason(request)
    if not 0 <= request.dropout < 1:
        reason = f"dropout {request.dropout}; only from 0 to below 1"
    return offer_unless(
        reason,
        name=NAME,
        build=lambda _: _build(request),
        provider=triton_requirements.provider(),
        fake=lambda _: _fake(request),
    )


def _fake(request: BiasDropoutAddRequest) -> Any:
    return import_module("pretrain_cuda.kernels.stand_ins.bias_dropout_add").triton(request)


def _build(request: BiasDropoutAddRequest) -> Any:
    return import_module("pretrain_cuda.kernels.triton.bias_dropout_add").BiasDropoutAdd(request)
