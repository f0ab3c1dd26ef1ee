"""torch's scaled_dot_product_attention, which torch_npu sends to CANN's flash attention from A2 on.

Where one of its checks fails it computes all weights instead (op-plugin's ScaledDotProductAttentionKernelNpuOpApi.cpp);
`attention` declines what they refuse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional as F  # noqa: N812  torch's own alias

from pretrain.plugins.requests import Mask
from pretrain.reference.attention import to_context
from pretrain_ascend.kernels import attention_masks
from pretrain_ascend.kernels.fusion_attention import check_causal

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import AttentionRequest


class Sdpa:
    """An `AttentionFn`."""

    def __init__(self, request: AttentionRequest) -> None:
        self.request = request
        self.shares_keys = request.query_groups != request.heads

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *, training: bool = True
    ) -> Tensor:
        """Return the context [s, b, n * d] for query [s, b, n, d], key and value [s, b, g, d]."""
        check_causal(self.request, query, key, mask)
        empty = seen = None
        if mask is not None:  # torch_npu 2.9.0 hands it on as it is, and CANN's kernel takes no row for all queries
            queries, batch, heads, _ = query.shape
            seen, empty = attention_masks.without_empty_rows(
                attention_masks.expanded(mask, batch, heads, queries, key.shape[0])
            )
        q, k, v = (x.permute(1, 2, 0, 3).contiguous() for x in (query, key, value))  # [b, n, s, d]
        keep = None if seen is None else ~seen  # as torch has it
        context = self.attend(q, k, v, keep, self.request.dropout if training else 0.0)
        return to_context(context if empty is None else context.masked_fill(empty, 0))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, dropout: float) -> Tensor:
        """Return the context [b, n, s, d] for q [b, n, s, d], k and v [b, g, s, d], and a mask that is True = keep."""
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=keep,
            dropout_p=dropout,
            is_causal=self.request.mask is Mask.CAUSAL,
            scale=self.request.scale,
            enable_gqa=self.shares_keys,
        )
