"""Bias and activation of the MLP: CANN's SwiGLU and GELU, after an addition of its own.

torch's gelu is not used: torch_npu ignores `approximate` there and always computes the form with tanh, says
torch_npu-npu_gelu.md; the reference's exact GELU would be that one too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pretrain.plugins.offer import offer_unless
from pretrain_ascend import software
from pretrain_ascend.devices import Family
from pretrain_ascend.kernels import chip_requirements

if TYPE_CHECKING:
    from pretrain.plugins.offer import Decline, Offer
    from pretrain.plugins.requests import ActivationRequest


def answers(request: ActivationRequest) -> list[Offer | Decline]:
    """Return the kernels for a request: GELU on all chips, SwiGLU from A2 on."""
    is_gated = request.kind == "swiglu"
    gelu = (
        f"kind {request.kind}; only gelu and gelu_tanh" if is_gated else chip_requirements.unsupported_reason(request)
    )
    swiglu = (
        chip_requirements.unsupported_reason(request, Family.A2) if is_gated else f"kind {request.kind}; only swiglu"
    )
    return [_answer(request, "npu_gelu", gelu, "Gelu"), _answer(request, "npu_swiglu", swiglu, "Swiglu")]


def _answer(request: ActivationRequest, name: str, reason: str, kernel: str) -> Offer | Decline:
    def build(_: object) -> Any:
        return getattr(import_module("pretrain_ascend.kernels.activation"), kernel)(request)

    return offer_unless(reason, name=name, build=build, fake=build, provider=software.provider())
