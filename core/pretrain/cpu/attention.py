"""Attention kernels of the CPU for a request, and torch's flash attention, which never stores the weights."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F  # noqa: N812  torch's own alias
from torch.nn.attention import SDPBackend, sdpa_kernel

from pretrain.cpu.tiled import Tiled, matmul_dtype
from pretrain.plugins.offer import Decline, Offer
from pretrain.plugins.requests import Mask
from pretrain.reference.attention import ByDocument, to_context
from pretrain.reference.softmax import check_mask

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import AttentionRequest
    from pretrain.plugins.signatures import AttentionFn


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
        check_mask(self.mask, mask)
        if self.mask is Mask.CAUSAL and query.shape[0] != key.shape[0]:
            # torch aligns the first query with the first key; our contract aligns the last ones.
            msg = f"sdpa: {query.shape[0]} queries and {key.shape[0]} keys under a causal mask; needs equally many"
            raise ValueError(msg)


def _dense(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()  # the kernel reads rows of heads


TORCH = f"torch {torch.__version__}"
"""Provider of torch's own kernels."""

STORED_UP_TO = 2048
"""Sequence length up to which "tiled" comes first. Beyond about that length the lower triangle of the weights, n * s /
2 per token, is larger than all other activations of a layer, about 17 * n * d with heads of 64."""


def answers(request: AttentionRequest) -> list[Offer | Decline]:
    """Return the kernels for a request, best first."""
    tiled, recomputed = _tiled(request, "tiled", "triangle"), _tiled(request, "recomputed", "flash")
    first = [tiled, recomputed] if request.most_keys <= STORED_UP_TO else [recomputed, tiled]
    return [*first, _sdpa(request)]


def _tiled(request: AttentionRequest, name: str, kind: str) -> Offer | Decline:
    if request.mask not in (Mask.CAUSAL, Mask.DOCUMENTS):
        reason = f"mask {request.mask}; only {Mask.CAUSAL} and {Mask.DOCUMENTS}"
        return Decline(name=name, kind=kind, reason=reason)
    if not 0 <= request.dropout < 1:
        return Decline(name=name, kind=kind, reason=f"dropout {request.dropout}; only below 1")
    return Offer(name=name, kind=kind, build=lambda _: _each(Tiled(request, stores=name == "tiled"), request))


def _each(causal: AttentionFn, request: AttentionRequest) -> AttentionFn:
    """Return a causal kernel, or with documents one that calls it for each."""
    return ByDocument(causal) if request.mask is Mask.DOCUMENTS else causal


def _sdpa(request: AttentionRequest) -> Offer | Decline:
    if request.dropout > 0:
        return Decline(name="sdpa", kind="flash", reason="no dropout in CPU flash attention")
    if request.window is not None:
        return Decline(name="sdpa", kind="flash", reason=f"window {request.window}; torch's attention has none")
    if request.keys:
        # torch aligns the first query with the first key; our contract aligns the last ones.
        reason = f"{request.keys} keys for {request.seq_length} queries; only as many"
        return Decline(name="sdpa", kind="flash", reason=reason)
    causal = replace(request, mask=Mask.CAUSAL) if request.mask is Mask.DOCUMENTS else request
    return Offer(name="sdpa", kind="flash", build=lambda _: _each(Sdpa(causal), request), provider=TORCH)
