"""The cpu backend as a plugin. For operations without a kernel here, the reference is fast enough.

benchmarks/training/cpu_kernels.py compares them. Left out: compiled activations, which cost seconds at the first step
and are no faster than torch's eager GELU; and torch's grouped matmul, whose bits are those of the reference's loop over
experts: with the gradient added to `main_grad` it took 0.96 to 1.06 times as long from 8 experts of 256 x 512 on. And
torch 2.13's scaled_mm: in fp8 with a scale for each row 2048 x 2048 x 2048 took 0.56 s on two busy cores, emulated in
bf16 0.40 s; the matmuls alone 0.23 and 0.06 s. With one scale for a matrix it takes 29 ns a product.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pretrain.cpu import attention
from pretrain.cpu.attention import TORCH
from pretrain.cpu.backend import CpuBackend
from pretrain.cpu.cross_entropy import BlockedCrossEntropy
from pretrain.cpu.dropout import FastBiasDropoutAdd
from pretrain.cpu.layer_norm import HalfLayerNorm
from pretrain.cpu.softmax import InPlaceSoftmax
from pretrain.cpu.tiled import matmul_dtype
from pretrain.plugins import hookimpl
from pretrain.plugins.offer import Absent, Decline, Offer, offer_unless
from pretrain.plugins.signatures import OptimizerKernels
from pretrain.reference.adam import FusedAdam, gradient_norm, keeping
from pretrain.reference.linear import Linear
from pretrain.reference.matmuls import Matmuls
from pretrain.reference.norm import TorchNorm

if TYPE_CHECKING:
    from pretrain.plugins import requests
    from pretrain.plugins.backend import Backend
    from pretrain.plugins.offer import Answer

CONTRACT = (1, 4)


@hookimpl
def pretrain_backend() -> Backend:
    """The CPU."""
    return CpuBackend()


@hookimpl
def pretrain_attention(request: requests.AttentionRequest) -> Answer:
    """Offer tiles of the lower triangle, and torch's flash attention."""
    return attention.answers(request)


@hookimpl
def pretrain_softmax(request: requests.SoftmaxRequest) -> Answer:
    """Offer a softmax in place."""
    return Offer(name="in_place", build=lambda _: InPlaceSoftmax(request))


@hookimpl
def pretrain_norm(request: requests.NormRequest) -> Answer:
    """Offer torch's layer norm; torch's RMS norm consists of single operations, like the reference."""
    if request.kind != "LayerNorm":
        return Decline(name="torch", reason=f"kind {request.kind}; only LayerNorm")
    kernel = TorchNorm if request.dtype.itemsize > 2 else HalfLayerNorm
    return Offer(name="torch", build=lambda _: kernel(request), provider=TORCH)


@hookimpl
def pretrain_bias_dropout_add(request: requests.BiasDropoutAddRequest) -> Answer:
    """Offer a kernel with a faster dropout mask; without dropout the reference is as fast."""
    if not 0 < request.dropout < 1:
        return None
    return Offer(name="fast_dropout", build=lambda _: FastBiasDropoutAdd(request.dropout))


@hookimpl
def pretrain_cross_entropy(request: requests.CrossEntropyRequest) -> Answer:
    """Offer cross entropy by blocks of rows, in place; always in fp32."""
    reason = "" if request.in_fp32 else "in_fp32 False (precision.fp16_lm_cross_entropy); only True"
    return offer_unless(reason, name="blocked", build=lambda _: BlockedCrossEntropy(request))


@hookimpl
def pretrain_linear(request: requests.LinearRequest) -> Answer:
    """Offer the reference with fp32 matmuls if the CPU has none in fp16."""
    if request.dtype is not torch.float16:
        return None
    dtype = matmul_dtype(request.dtype)
    absent = Absent("this CPU has matmuls in fp16" if dtype is request.dtype else "")
    reason = f"quantization {request.quantization}; only without" if request.quantization else absent
    return offer_unless(reason, name="fp32_matmul", build=lambda _: Linear(request, Matmuls(request, dtype=dtype)))


@hookimpl
def pretrain_optimizer(request: requests.OptimizerRequest) -> Answer:
    """Offer torch's fused kernel for the CPU."""
    kernels = OptimizerKernels(adam=keeping(FusedAdam, request), gradient_norm=gradient_norm(request.device_type))
    return Offer(name="fused", build=lambda _: kernels, provider=TORCH)
