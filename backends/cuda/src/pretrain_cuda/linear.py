"""The column-parallel linear: fp8 by torch's `scaled_mm`, gradient accumulation fusion where apex's extension is there.

The order of communication and matmuls is the reference's, which suits NCCL too: the all-reduce of the input's gradient
is issued on a stream of its own before the matmul of the weight's gradient, and waited for after it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from pretrain.plugins import installed
from pretrain.plugins.offer import Absent, offer_unless
from pretrain.reference.linear import Linear
from pretrain.reference.matmuls import Matmuls
from pretrain_cuda.kernels import scaled_mm_limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from pretrain.plugins.offer import Decline, Offer
    from pretrain.plugins.requests import LinearRequest

NAME = "apex"
EXTENSION = "fused_weight_gradient_mlp_cuda"
_HALF = (torch.float16, torch.bfloat16)


def answers(request: LinearRequest) -> list[Offer | Decline]:
    """Return matmuls in fp8, and apex's that adds into the main gradient, or reasons; the reference comes after."""
    return [_scaled(request), _apex(request)]


def _scaled(request: LinearRequest) -> Offer | Decline:
    def build(_: object, rounding: Any = None) -> Linear:
        matmuls = import_module("pretrain_cuda.kernels.scaled_mm").ScaledMatmuls
        return Linear(request, matmuls(request, rounding))

    def fake(_: object) -> Linear:
        return build(_, import_module("pretrain_cuda.kernels.stand_ins.scaled_mm").quantize)

    reason = scaled_mm_limits.unsupported_reason(request)
    return offer_unless(reason, name="scaled_mm", build=build, provider=installed.provider("torch"), fake=fake)


def _apex(request: LinearRequest) -> Offer | Decline:
    reason = _unsupported_reason(request)
    return offer_unless(
        reason,
        name=NAME,
        build=lambda _: _build(request),
        provider=installed.provider("apex"),
        fake=lambda _: _fake(request),
    )


def _unsupported_reason(request: LinearRequest) -> str:
    main = request.main_grad_dtype
    if request.quantization:
        return f"quantization {request.quantization}; only without"
    if main is None:
        return "no gradient accumulation fusion is asked for; only that"
    if request.dtype not in (*_HALF, torch.float32) or (main is not torch.float32 and main is not request.dtype):
        return f"dtype {request.dtype} into {main}; only fp16, bf16 and fp32 into fp32 or into themselves"
    if main is not torch.float32 and request.dtype not in _HALF:
        return f"main gradients in {main}; only fp32, fp16 and bf16"
    if not installed.has(EXTENSION):
        return Absent(f"{EXTENSION} is not installed; apex brings it when it is built with --cuda_ext")
    return ""


def _fake(request: LinearRequest) -> Linear:
    accumulate = import_module("pretrain_cuda.kernels.stand_ins.linear").accumulate
    return Linear(request, Matmuls(request, accumulate=accumulate))


def _build(request: LinearRequest) -> Linear:
    """Apex csrc/megatron/fused_weight_gradient_dense.cpp: (input [rows, in], gradient [rows, out], main gradient)."""
    extension = import_module(EXTENSION)
    in_fp32 = request.main_grad_dtype is torch.float32
    matmul: Callable[[Tensor, Tensor, Tensor], None] = (
        extension.wgrad_gemm_accum_fp32 if in_fp32 else extension.wgrad_gemm_accum_fp16
    )

    def accumulate(main_grad: Tensor, grad: Tensor, x: Tensor) -> None:
        matmul(x.contiguous(), grad.contiguous(), main_grad)

    return Linear(request, Matmuls(request, accumulate=accumulate))
