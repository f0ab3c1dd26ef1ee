"""The reference's triangle attention with CANN's fused softmax for its blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.reference.attention import CausalBlocks
from pretrain.reference.softmax import masked_softmax
from pretrain_ascend.kernels import attention_masks, softmax_limits
from pretrain_ascend.kernels.matmuls import query_first
from pretrain_ascend.kernels.softmax import softmax_with_seen_keys

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import AttentionRequest
    from pretrain.reference.attention import BlockMask


def make(request: AttentionRequest, mask: BlockMask = attention_masks.causal) -> CausalBlocks:
    """Return an `AttentionFn` for causal masks, with dropout; `mask` makes those of the blocks.

    A block whose sizes the fused softmax does not take, such as one with more than 4096 keys, is computed in plain
    torch: that depends on the shapes alone, and is the same in every step.
    """

    def softmax(scores: Tensor, masked: Tensor) -> Tensor:
        if softmax_limits.fits(*scores.shape[2:]):
            return softmax_with_seen_keys(scores, masked, request.score_divisor)
        return masked_softmax(scores, masked, request.score_divisor, in_fp32=request.softmax_in_fp32)

    return CausalBlocks(request, softmax, matmul=query_first, mask=mask)
