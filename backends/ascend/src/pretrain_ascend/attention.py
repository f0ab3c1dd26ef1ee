"""Attention: the kernels for a request, the best one first."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from pretrain.plugins.offer import offer_unless
from pretrain.plugins.requests import Mask
from pretrain.reference.attention import Attention, ByDocument
from pretrain_ascend import software
from pretrain_ascend.devices import Family
from pretrain_ascend.kernels import chip_requirements, softmax_limits
from pretrain_ascend.kernels.matmuls import query_first

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pretrain.plugins.offer import Decline, Offer
    from pretrain.plugins.requests import AttentionRequest

LARGEST_HEAD, MOST_HEADS = 768, 256
"""torch_npu-npu_fusion_attention.md: D from 1 to 768, N up to 256."""

MOST_TOKENS = 2**20
"""The same: T from 1 to 1M, in the layout of documents."""

LARGEST_SDPA_HEAD = 512
"""D_LIMIT of op-plugin's ScaledDotProductAttentionKernelNpuOpApi.cpp."""


def answers(request: AttentionRequest) -> list[Offer | Decline]:
    """Return all kernels. Those that store no weights come first, then the triangle, then all weights.

    None of it was measured. torch's call ends in the same kernel as the direct one, through more checks; where they
    fail it would silently compute all weights, so it declines those requests. The last two scale queries
    before the matmul, which the reference's do not: see `kernels.matmuls`; they compute documents one by one.
    """
    return [_fusion(request), _sdpa(request), _triangle(request), _square(request)]


def _fusion(request: AttentionRequest) -> Offer | Decline:
    kernel, reason = "fusion_attention.FusionAttention", _fusion_limits(request)
    if request.mask is Mask.DOCUMENTS:
        kernel, reason = "document_attention.DocumentAttention", reason or _document_limits(request)
    return _answer(request, "fusion_attention", "flash", reason, kernel, kernel)


def _sdpa(request: AttentionRequest) -> Offer | Decline:
    reason = _fusion_limits(request)
    if request.mask is Mask.DOCUMENTS:
        reason = reason or f"mask {request.mask}; torch's attention has none"
    elif request.keys:
        reason = reason or f"{request.keys} keys for {request.seq_length} queries; only as many"
    elif request.window is not None:
        reason = reason or f"window {request.window}; torch's attention has none"
    elif request.head_size > LARGEST_SDPA_HEAD:
        reason = reason or f"head size {request.head_size}; at most {LARGEST_SDPA_HEAD}"
    elif request.dtype is torch.float32 and request.head_size % 4:
        reason = reason or f"head size {request.head_size} in float32; only multiples of 4"
    return _answer(request, "sdpa", "flash", reason, "sdpa.Sdpa", "stand_ins.sdpa.Sdpa")


def _triangle(request: AttentionRequest) -> Offer | Decline:
    reason = _matmul_limits(request)
    if request.mask not in (Mask.CAUSAL, Mask.DOCUMENTS):
        reason = f"mask {request.mask}; only {Mask.CAUSAL} and {Mask.DOCUMENTS}"
    elif not 0 <= request.dropout < 1:
        reason = f"dropout {request.dropout}; only from 0 to below 1"
    rows = min(request.block_size, request.seq_length)
    reason = reason or softmax_limits.sizes(rows, rows)
    return _answer(request, "triangle_fused", "triangle", reason, "triangle.make", "stand_ins.triangle.make")


def _square(request: AttentionRequest) -> Offer | Decline:
    def build(built: Mapping[str, Any]) -> Any:
        if request.mask is Mask.DOCUMENTS:  # each of another size, which the fused softmax was not asked for
            return ByDocument(Attention(replace(request, mask=Mask.CAUSAL), matmul=query_first))
        return Attention(request, built.get("softmax"), matmul=query_first)

    reason = _matmul_limits(request)
    return offer_unless(reason, name="query_first", kind="softmax", build=build, provider=software.provider())


def _matmul_limits(request: AttentionRequest) -> str:
    return chip_requirements.unsupported_reason(request) or chip_requirements.unsupported_matmul(request)


def _fusion_limits(request: AttentionRequest) -> str:
    reason = chip_requirements.unsupported_reason(request, Family.A2)
    if reason:
        return reason
    if request.head_size > LARGEST_HEAD:
        return f"head size {request.head_size}; at most {LARGEST_HEAD}"
    if request.heads > MOST_HEADS:
        return f"{request.heads} heads; at most {MOST_HEADS}"
    if not 0 <= request.dropout < 1:
        return f"dropout {request.dropout}; only from 0 to below 1"
    return ""


def _document_limits(request: AttentionRequest) -> str:
    tokens = request.micro_batch_size * request.most_keys
    if tokens > MOST_TOKENS:
        return f"{tokens} keys with mask {request.mask}; at most {MOST_TOKENS}"
    if request.window == 1:  # flash_attention_score_grad_tiling_s1s2_bn2gs1s2.cpp of CANN's ops-transformer
        return f"window {request.window} with mask {request.mask}; only from 2, by a check of CANN's backward pass"
    return ""


def _answer(request: AttentionRequest, name: str, kind: str, reason: str, kernel: str, fake: str) -> Offer | Decline:
    def made_by(path: str) -> Callable[[object], Any]:
        module, _, attribute = path.rpartition(".")
        return lambda _: getattr(import_module(f"pretrain_ascend.kernels.{module}"), attribute)(request)

    build, stand_in = made_by(kernel), made_by(fake)
    return offer_unless(reason, name=name, kind=kind, build=build, fake=stand_in, provider=software.provider())
