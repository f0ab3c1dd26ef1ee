"""torch's flash attention for the CPU; it never stores the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional as F  # noqa: N812  torch's own alias
from torch.nn.attention import SDPBackend, sdpa_kernel

from pretrain.cpu.matmul import matmul_dtype
from pretrain.plugins.requests import Mask
from pretrain.reference.attention import to_context

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import AttentionRequest


class Sdpa:
    """An `AttentionFn` without dropout. Scores stay in fp32; a fully masked query gets zeros."""

    def __init__(self, request: AttentionRequest) -> None:
        self.mask, self.scale = request.mask, request.scale
        self.shares_keys = request.query_groups != request.heads
        self.dtype = matmul_dtype(request.dtype)

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        *,
        training: bool = True,  # noqa: ARG002  there is no dropout
    ) -> Tensor:
        """Return the context [s, b, n * d] for query [s, b, n, d], key and value [s, b, g, d]."""
        self._check(query, key, mask)
        q, k, v = (_dense(x.to(self.dtype)).permute(1, 2, 0, 3) for x in (query, key, value))  # [b, n, s, d]
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # an error is better than torch's own fallback
            context = F.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=None if mask is None else ~mask,  # torch: True = keep
                is_causal=self.mask is Mask.CAUSAL,
                scale=self.scale,
                enable_gqa=self.shares_keys,
            )
        return to_context(context).to(query.dtype)

    def _check(self, query: Tensor, key: Tensor, mask: Tensor | None) -> None:
        if (mask is None) is (self.mask in (Mask.KEY_PADDING, Mask.ARBITRARY)):
            given = "without a" if mask is None else "with a"
            msg = f"sdpa: built for the mask '{self.mask}', called {given} mask tensor"
            raise ValueError(msg)
        if self.mask is Mask.CAUSAL and query.shape[0] != key.shape[0]:
            # torch aligns the first query with the first key; our contract aligns the last ones.
            msg = f"sdpa: {query.shape[0]} queries and {key.shape[0]} keys under a causal mask; only equally many"
            raise ValueError(msg)


def _dense(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()  # the kernel reads rows of heads
