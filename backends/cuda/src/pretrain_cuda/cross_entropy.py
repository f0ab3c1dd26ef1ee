"""Vocabulary-parallel cross entropy in Triton, in place.

liger-kernel's is not offered: it does not support tensor-parallel groups. torch.compile cannot write over its input.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pretrain.plugins.offer import offer_unless
from pretrain_cuda.kernels import triton_requirements

if TYPE_CHECKING:
    from pretrain.plugins.offer import Decline, Offer
    from pretrain.plugins.requests import CrossEntropyRequest

NAME = "triton"


def answers(request: CrossEntropyRequest) -> Offer | Decline:
    """Return the one kernel, or the reason that it does not fit."""
    reason = triton_requirements.unsupported_reason(request)
    if not request.in_fp32:
        reason = reason or "in_fp32 False (precision.fp16_lm_cross_entropy); only True"
    return offer_unless(
        reason, name=NAME, build=lambda _: _build(request), provider=triton_requirements.provider(), fake=_fake
    )


def _fake(_: object) -> Any:
    return import_module("pretrain_cuda.kernels.stand_ins.cross_entropy").triton()


def _build(request: CrossEntropyRequest) -> Any:
    return import_module("pretrain_cuda.kernels.triton.cross_entropy").CrossEntropy(request)
