"""The reference's triangle attention with CANN's fused softmax for its blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.plugins.requests import Mask
from pretrain.reference.attention import ByDocument, CausalBlocks
from pretrain.reference.softmax import masked_softmax
from pretrain_ascend.kernels import attention_masks, softmax_limits
from pretrain_ascend.kernels.matmuls import query_first
from pretrain_ascend.kernels.softmax import softmax_with_seen_keys

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import AttentionRequest
    from pretrain.plugins.signatures import AttentionFn
    from pretrain.reference.attention import BlockMask


def make(request: AttentionRequest, mask: BlockMask = attention_masks.causal) -> AttentionFn:
    """Return an `AttentionFn` for causal masks and documents, with dropout; `mask` makes those of the blocks.

    A block whose sizes the fused softmax does not take, such as one with more than 4096 keys or the last one of most
    documents, is computed in plain torch: that depends on the shapes alone, and is the same for the same documents.
    """

    def softmax(scores: Tensor, masked: Tensor) -> Tensor:
        if softmax_limits.fits(*scores.shape[2:]):
            return softmax_with_seen_keys(scores, masked, request.score_divisor)
        return masked_softmax(scores, masked, request.score_divisor, in_fp32=request.softmax_in_fp32)

    blocks = CausalBlocks(request, softmax, matmul=query_first, mask=mask)
    return ByDocument(blocks) if request.mask is Mask.DOCUMENTS else blocks
