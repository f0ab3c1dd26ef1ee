"""Adam and the gradient norm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.plugins.offer import offer_unless
from pretrain.plugins.signatures import OptimizerKernels
from pretrain.reference.adam import FusedAdam, gradient_norm, keeping
from pretrain_ascend import software
from pretrain_ascend.devices import Family
from pretrain_ascend.kernels import chip_requirements

if TYPE_CHECKING:
    from pretrain.plugins.offer import Decline, Offer
    from pretrain.plugins.requests import OptimizerRequest

NAME = "fused"


def answers(request: OptimizerRequest) -> Offer | Decline:
    """Return torch's fused AdamW, in torch_npu one aclnnApplyAdamWV2 for each tensor.

    torch_npu registers `_fused_adamw_` alone, so that Adam with weight decay in the gradient is the reference's. The
    norm takes no host synchronization: it is made of torch's foreach operators, which torch_npu has.
    """
    reason = chip_requirements.unsupported_reason(request, Family.A2)
    if request.name != "adamw":
        reason = reason or f"name {request.name}; only adamw has a fused kernel in torch_npu"

    def kernels(device_type: str) -> OptimizerKernels:
        return OptimizerKernels(adam=keeping(FusedAdam, request), gradient_norm=gradient_norm(device_type))

    return offer_unless(
        reason,
        name=NAME,
        build=lambda _: kernels(request.device_type),
        fake=lambda _: kernels("cpu"),  # torch's fused kernel runs on fake tensors, which a plan has on the CPU
        provider=software.provider(),
    )
