"""torch's scaled_dot_product_attention, by the three kernels it has for GPUs: none of them stores the weights.

One kernel is allowed at a time: torch then raises where it would fall back. Limits are those it checks, in
aten/src/ATen/native/transformers/cuda/sdp_utils.cpp. Scores stay in fp32. Under a deterministic request the training
calls `torch.use_deterministic_algorithms`, which the backward passes of flash and efficient obey.

flash and efficient are called for each document: torch's `varlen_attn` has no dropout, and before torch 2.13 no shared
keys. cuDNN would plan anew for every length, and takes none of one token.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F  # noqa: N812  torch's own alias
from torch.nn.attention import SDPBackend, sdpa_kernel

from pretrain.plugins.offer import offer_unless
from pretrain.plugins.requests import Mask
from pretrain.reference.attention import ByDocument, to_context
from pretrain.reference.softmax import causal, check_mask
from pretrain_cuda.devices import AMPERE, architecture_of, multiprocessors_of
from pretrain_cuda.kernels.flash_limits import (
    ANY_LENGTH,
    HALF,
    before_ampere,
    has_little_shared_memory,
    no_other_keys,
    no_window,
    not_a_multiple_of,
    over_head_size,
    unknown,
    unsupported_reason,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from pretrain.plugins.offer import Decline, Offer
    from pretrain.plugins.requests import AttentionRequest
    from pretrain.plugins.signatures import AttentionFn
    from pretrain_cuda.devices import Architecture


class Sdpa:
    """An `AttentionFn` by one of torch's kernels."""

    def __init__(
        self, request: AttentionRequest, kernel: SDPBackend, function: Callable[..., Tensor] | None = None
    ) -> None:
        """Make a kernel.

        Args:
            request: describes the attention.
            kernel: the one that torch may use.
            function: called as torch's scaled_dot_product_attention. None: that one.
        """
        self.function = function
        self.kernel, self.mask, self.scale, self.dropout = kernel, request.mask, request.scale, request.dropout
        self.window = request.window
        # efficient: "enable_gqa" came to it after torch 2.13, and the copies are small beside the weights it saves.
        self.repeats = request.heads // request.query_groups if kernel is SDPBackend.EFFICIENT_ATTENTION else 1
        self.shares_keys = self.repeats == 1 and request.query_groups != request.heads

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *, training: bool = True
    ) -> Tensor:
        """Return the context [s, b, n * d] for query [s, b, n, d], key and value [keys, b, g, d]."""
        check_mask(self.mask, mask)
        if self.repeats > 1:
            key, value = (x.repeat_interleave(self.repeats, dim=2) for x in (key, value))
        if self.window is not None:
            mask = causal(query.shape[0], key.shape[0], query.device, self.window)[None, None]
        # A query that sees no key gets all keys, and its context is set to zero: torch's kernels return the mean of the
        # values, nan or zero for such a row, depending on the version.
        empty = None if mask is None else mask.all(dim=-1, keepdim=True)  # [b, 1 or n, 1 or queries, 1]
        is_causal = self.mask is Mask.CAUSAL and mask is None
        attend: Callable[..., Tensor] = F.scaled_dot_product_attention
        if is_causal and query.shape[0] != key.shape[0]:
            if self.kernel is not SDPBackend.FLASH_ATTENTION:
                msg = f"sdpa: {query.shape[0]} queries and {key.shape[0]} keys under a causal mask; needs equally many"
                raise ValueError(msg)
            attend = _ends_at_last_key
        q, k, v = (_dense(x).permute(1, 2, 0, 3) for x in (query, key, value))  # [b, n, s, d]
        with sdpa_kernel(self.kernel):
            context = (self.function or attend)(
                q,
                k,
                v,
                attn_mask=None if mask is None or empty is None else ~mask | empty,  # torch: True = keep
                dropout_p=self.dropout if training else 0.0,
                is_causal=is_causal,
                scale=self.scale,
                enable_gqa=self.shares_keys,
            )
        return to_context(context if empty is None else context.masked_fill(empty, 0))


def _ends_at_last_key(q: Tensor, k: Tensor, v: Tensor, *, dropout_p: float, scale: float, **_: object) -> Tensor:
    """Return the context [b, n, queries, d] of flash under a causal mask whose last query sees the last key.

    That is how its own operator reads `is_causal`; torch's function aligns the first ones and refuses others. torch's
    way to this operator, `causal_lower_right`, first allocates a tensor of queries x keys on the host.
    """
    size, more = q.shape[-1], -q.shape[-1] % 8
    padded = (F.pad(x, [0, more]) if more else x for x in (q, k, v))
    flash = torch.ops.aten._scaled_dot_product_flash_attention  # noqa: SLF001  no public function leads to it
    context: Tensor = flash(*padded, dropout_p, is_causal=True, return_debug_mask=False, scale=scale)[0]
    return context[..., :size]


def kernel_for(
    request: AttentionRequest, kernel: SDPBackend, function: Callable[..., Tensor] | None = None
) -> AttentionFn:
    """Return the kernel of a request, which calls torch's for each document where it is to keep them apart."""
    if request.mask is Mask.DOCUMENTS:
        return ByDocument(Sdpa(replace(request, mask=Mask.CAUSAL), kernel, function))
    return Sdpa(request, kernel, function)


def flash(request: AttentionRequest) -> Offer | Decline:
    """Return flash-attn 2 as torch builds it in, with dropout; it pads head sizes to a multiple of 8."""
    return _answer(request, SDPBackend.FLASH_ATTENTION, unsupported_reason(request, _flash, ANY_LENGTH))


def cudnn(request: AttentionRequest) -> Offer | Decline:
    """Return cuDNN's. Masks it takes, but gives nan gradients at some lengths: pytorch's issue 196678."""
    return _answer(request, SDPBackend.CUDNN_ATTENTION, unsupported_reason(request, _cudnn))


def efficient(request: AttentionRequest) -> Offer | Decline:
    """Return the kernel that came from xFormers: for masks, and for fp32."""
    return _answer(request, SDPBackend.EFFICIENT_ATTENTION, _efficient(request))


def prefers_cudnn(architecture: Architecture) -> bool:
    """Return whether torch itself prefers cuDNN to flash: on Hopper and Blackwell, from cuDNN 9.15.1 on."""
    version = _cudnn_version()  # None where torch is built without: then the newest is assumed
    return architecture.major in (9, 10) and (version is None or version > 91500)


def _answer(request: AttentionRequest, kernel: SDPBackend, reason: str) -> Offer | Decline:
    name = f"sdpa_{kernel.name.removesuffix('_ATTENTION').lower()}"

    def build(_: object) -> AttentionFn:
        return kernel_for(request, kernel)

    def fake(_: object) -> AttentionFn:
        stand_ins: Any = import_module("pretrain_cuda.kernels.stand_ins.sdpa")
        return kernel_for(request, kernel, stand_ins.function(request, kernel, multiprocessors_of(request.device_name)))

    return offer_unless(reason, name=name, kind="flash", build=build, provider=_provider(kernel), fake=fake)


def _provider(kernel: SDPBackend) -> str:
    version = _cudnn_version() if kernel is SDPBackend.CUDNN_ATTENTION else None
    return f"torch {torch.__version__}" + (f", cuDNN {version}" if version else "")


def _flash(request: AttentionRequest, architecture: Architecture) -> str:
    size = request.head_size
    if has_little_shared_memory(architecture) and (192 < size <= 224 or (size > 192 and request.dropout)):
        return (
            f"head size {size} with dropout {request.dropout} on compute capability {architecture}; "
            "at most 192, or over 224 without dropout"
        )
    return before_ampere(architecture) or over_head_size(request, 256) or no_window(request)


def _cudnn(request: AttentionRequest, architecture: Architecture) -> str:
    reason = before_ampere(architecture) or over_head_size(request, 128) or not_a_multiple_of(8, request)
    if reason := reason or no_window(request) or no_other_keys(request):
        return reason
    version = _cudnn_version()
    if request.deterministic:
        return "deterministic is asked for; its backward pass is not"
    if request.dropout * 16 != int(request.dropout * 16):
        return f"dropout {request.dropout}; only multiples of 1/16"
    if request.dropout and version is not None and 91100 < version < 91400:
        return f"dropout {request.dropout} with cuDNN {version}; not in 9.11 to 9.13"
    return "sequence length 1; only longer ones" if request.seq_length == 1 else ""


def _efficient(request: AttentionRequest) -> str:
    architecture = architecture_of(request.device_name)
    if architecture is None:
        return unknown(request)
    if request.dtype not in (*HALF, torch.float32):
        return f"dtype {request.dtype}; only fp32, fp16 and bf16"
    if request.dtype is torch.bfloat16 and architecture < AMPERE:
        return f"dtype {request.dtype} on compute capability {architecture}; bf16 only on {AMPERE} and later"
    return no_other_keys(request) or not_a_multiple_of(8 if request.dtype in HALF else 4, request)


def _dense(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()  # the kernels read rows of heads


def _cudnn_version() -> int | None:
    version: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return version
