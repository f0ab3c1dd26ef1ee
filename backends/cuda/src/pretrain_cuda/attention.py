"""Attention: the kernels for a request, the best one first."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pretrain.plugins.offer import offer_unless
from pretrain.plugins.requests import Mask
from pretrain.reference.attention import ByDocument
from pretrain_cuda.devices import BLACKWELL, HOPPER, architecture_of
from pretrain_cuda.kernels import sdpa, transformer_engine, triton_requirements
from pretrain_cuda.kernels.flash_attn import FLASH_2, FLASH_3, FLASH_4
from pretrain_cuda.kernels.flash_limits import no_window

if TYPE_CHECKING:
    from pretrain.plugins.offer import Decline, Offer
    from pretrain.plugins.requests import AttentionRequest
    from pretrain.plugins.signatures import AttentionFn

LARGEST_DROPOUT = 1 - 2**-16
"""Largest dropout of the triangle, which rounds to multiples of 2^-16."""


def answers(request: AttentionRequest) -> list[Offer | Decline]:
    """Return all kernels. Those that store no weights come first, then the triangle; the reference's square comes last.

    None of it was measured here. Libraries come before torch, whose flash attention is an older flash-attn 2; each
    generation of flash-attn was written for one architecture, and comes first there. Between flash-attn 3 or 4 and
    flash-attn 2, whose instructions are Ampere's, stands cuDNN where torch itself prefers it. Transformer Engine, which
    chooses among the same kernels call by call, is there for recipes that name it.
    """
    architecture = architecture_of(request.device_name)
    if architecture is None or architecture < HOPPER:
        first = [FLASH_2.answer(request), sdpa.flash(request), sdpa.cudnn(request)]
        return [*first, FLASH_3.answer(request), FLASH_4.answer(request), *_last(request)]
    own, other = (FLASH_4, FLASH_3) if architecture >= BLACKWELL else (FLASH_3, FLASH_4)
    torch_kernels = [sdpa.cudnn(request), FLASH_2.answer(request), sdpa.flash(request)]
    if not sdpa.prefers_cudnn(architecture):
        torch_kernels = [*torch_kernels[1:], torch_kernels[0]]
    return [own.answer(request), other.answer(request), *torch_kernels, *_last(request)]


def _last(request: AttentionRequest) -> list[Offer | Decline]:
    return [transformer_engine.answer(request), sdpa.efficient(request), _triangle(request)]


def _triangle(request: AttentionRequest) -> Offer | Decline:
    reason = triton_requirements.unsupported_reason(request)
    if request.mask not in (Mask.CAUSAL, Mask.DOCUMENTS):
        reason = f"mask {request.mask}; only {Mask.CAUSAL} and {Mask.DOCUMENTS}"
    elif not 0 <= request.dropout < LARGEST_DROPOUT:
        reason = f"dropout {request.dropout}; only below {LARGEST_DROPOUT}"
    else:
        reason = no_window(request) or reason

    def build(_: object, softmax: Any = None) -> AttentionFn:
        triangle = import_module("pretrain_cuda.kernels.triangle").Triangle(request, softmax)  # imports triton
        return ByDocument(triangle) if request.mask is Mask.DOCUMENTS else triangle

    def fake(_: object) -> AttentionFn:
        return build(_, import_module("pretrain_cuda.kernels.stand_ins.triangle"))

    provider = triton_requirements.provider()
    return offer_unless(reason, name="triangle_triton", kind="triangle", build=build, provider=provider, fake=fake)
