"""Scale, mask and softmax in CANN's fused kernel."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pretrain.plugins.offer import offer_unless
from pretrain_ascend import software
from pretrain_ascend.kernels import softmax_limits

if TYPE_CHECKING:
    from pretrain.plugins.offer import Decline, Offer
    from pretrain.plugins.requests import SoftmaxRequest

NAME = "scaled_masked_softmax"


def answers(request: SoftmaxRequest) -> Offer | Decline:
    """Return the one kernel, or the reason that it does not fit."""
    reason = softmax_limits.unsupported_reason(request)

    def build(_: object) -> Any:
        return import_module("pretrain_ascend.kernels.softmax").Softmax(request)

    return offer_unless(reason, name=NAME, build=build, fake=build, provider=software.provider())
