"""Stand-ins of torch_npu's operators by name; their arguments are those of the operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain_ascend.kernels.stand_ins import (
    activation,
    attention,
    cross_entropy,
    moe_token_permute,
    norm,
    softmax,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

OPERATORS: Mapping[str, Callable[..., Any]] = {
    "npu_cross_entropy_loss": cross_entropy.cross_entropy_loss,
    "npu_fusion_attention": attention.fusion_attention,
    "npu_gelu": activation.gelu,
    "npu_moe_token_permute": moe_token_permute.token_permute,
    "npu_moe_token_unpermute": moe_token_permute.token_unpermute,
    "npu_rms_norm": norm.rms_norm,
    "npu_scaled_masked_softmax": softmax.scaled_masked_softmax,
    "npu_swiglu": activation.swiglu,
}
"""What a model's kernels call, but for the rotation and the experts' linears, which have stand-ins as a whole.

The float status of the first generation is read between steps and is not here.
"""
