"""Transformer Engine's attention, `transformer_engine.pytorch.DotProductAttention`: where it is installed.

It chooses itself among flash-attn's kernels and cuDNN's, from shapes, versions and its environment variables. Declined
here is all that it may leave to neither: it would then compute with stored weights. Arguments
and masks are those that its sources document at commit 0001d1b (2.x). Its norms are modules that own their weights, and
its fused softmax is that of apex's extensions: neither is a kernel for the plugin interface.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pretrain.plugins import installed
from pretrain.plugins.offer import Absent, offer_unless
from pretrain.plugins.requests import Mask
from pretrain.reference.softmax import check_mask
from pretrain_cuda.kernels.flash_limits import (
    before_ampere,
    no_other_keys,
    not_a_multiple_of,
    over_head_size,
    unsupported_reason,
)

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.offer import Decline, Offer
    from pretrain.plugins.requests import AttentionRequest
    from pretrain_cuda.devices import Architecture

NAME = "transformer_engine"
MODULE = "transformer_engine.pytorch"


def answer(request: AttentionRequest) -> Offer | Decline:
    """Return the kernel, or the reason that it does not fit; the installation is checked last."""
    reason = unsupported_reason(request, _limits)
    if not reason and not installed.has(MODULE):
        reason = Absent(f"{MODULE} is not installed: pip install --no-build-isolation transformer_engine[pytorch]")
    provider = installed.provider("transformer_engine")
    return offer_unless(
        reason,
        name=NAME,
        kind="flash",
        build=lambda _: DotProductAttention(request),
        provider=provider,
        fake=lambda _: import_module("pretrain_cuda.kernels.stand_ins.sdpa").transformer_engine(),
    )


class DotProductAttention:
    """An `AttentionFn` around its module, which has no weights; tensor parallelism is in the heads that it is given."""

    def __init__(self, request: AttentionRequest) -> None:
        self.mask = request.mask
        self.module: Any = import_module(MODULE).DotProductAttention(
            num_attention_heads=request.heads,
            kv_channels=request.head_size,
            num_gqa_groups=request.query_groups,
            attention_dropout=request.dropout,
            qkv_format="sbhd",
            attn_mask_type=_mask_type(request.mask, is_square=True),
            softmax_scale=request.scale,
        )

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *, training: bool = True
    ) -> Tensor:
        """Return the context [s, b, n * d] for query [s, b, n, d], key and value [s, b, g, d]."""
        check_mask(self.mask, mask)
        if self.module.training != training:
            self.module.train(training)  # whether it drops
        mask_type = _mask_type(self.mask, is_square=query.shape[0] == key.shape[0])
        context: Tensor = self.module(query, key, value, attn_mask_type=mask_type)
        return context.reshape(*query.shape[:2], -1)


def _mask_type(mask: Mask, *, is_square: bool) -> str:
    """Return its name of a mask; "causal" ends at the first key's diagonal, ours at the last key's."""
    if mask is Mask.NONE:
        return "no_mask"
    return "causal" if is_square else "causal_bottom_right"


def _limits(request: AttentionRequest, architecture: Architecture) -> str:
    if request.deterministic:
        return "deterministic; asked for that, it may use none of its fused kernels"
    if request.window is not None:
        return f"window {request.window}; with one it may use none of its fused kernels"
    if reason := no_other_keys(request):  # of its kernels only the newer ones end a mask at the last key
        return reason
    return before_ampere(architecture) or over_head_size(request, 128) or not_a_multiple_of(8, request)
