"""Layer norm and RMS norm: apex's kernels, one in Triton, torch's own.

The order was not measured. apex's come first where they are built, FastLayerNorm before FusedLayerNorm as in
megatron-core. torch's comes last: its backward pass reads the input twice, for the gradients of the input and of the
weight, and it takes no fp32 weights for fp16 or bf16 inputs. torch.compile would make a kernel like Triton's, seconds
after the start.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pretrain.plugins import installed
from pretrain.plugins.offer import Absent, offer_unless
from pretrain.reference.norm import TorchNorm
from pretrain_cuda.devices import multiprocessors_of
from pretrain_cuda.kernels import triton_requirements

if TYPE_CHECKING:
    from pretrain.plugins.offer import Decline, Offer
    from pretrain.plugins.requests import NormRequest

FAST_SIZES = (
    *(768, 1024, 1536, 2048, 2304, 3072, 3840, 4096, 5120, 6144, 8192, 10240, 12288, 12800, 14336, 15360, 16384),
    *(18432, 20480, 24576, 25600, 30720, 32768, 40960, 49152, 65536),
)
"""Hidden sizes of apex's FastLayerNorm: contrib/csrc/layer_norm/ln_fwd_cuda_kernel.cu, REGISTER_FWD_LAUNCHER."""

LONGEST_ROW = 32768
"""Entries of a row that one Triton program holds in its registers in the forward pass."""


def answers(request: NormRequest) -> list[Offer | Decline]:
    """Return the kernels for a request, the best one first."""
    return [
        _answer(request, "apex_fast", _apex_fast(request), "apex", "apex_norm.FastLayerNorm"),
        _answer(request, "apex", _apex(request), "apex", "apex_norm.FusedNorm"),
        _answer(request, "triton", _triton(request), "triton", "triton.norm.Norm"),
        offer_unless(
            _one_dtype(request),
            name="torch",
            build=lambda _: TorchNorm(request),
            provider=installed.provider("torch"),
            fake=lambda _: _fake(request, "torch"),
        ),
    ]


def _answer(request: NormRequest, name: str, reason: str, library: str, kernel: str) -> Offer | Decline:
    module, _, attribute = kernel.rpartition(".")

    def build(_: object) -> Any:
        return getattr(import_module(f"pretrain_cuda.kernels.{module}"), attribute)(request)

    provider = installed.provider(library)
    return offer_unless(reason, name=name, build=build, provider=provider, fake=lambda _: _fake(request, name))


def _fake(request: NormRequest, name: str) -> Any:
    stand_ins: Any = import_module("pretrain_cuda.kernels.stand_ins.norm")
    if name == "apex_fast":
        return stand_ins.apex_fast(request, multiprocessors_of(request.device_name))
    return {"apex": stand_ins.apex, "triton": stand_ins.triton, "torch": stand_ins.by_torch}[name](request)


def _apex_fast(request: NormRequest) -> str:
    size = request.hidden_size
    if request.kind != "LayerNorm":
        return f"kind {request.kind}; only LayerNorm"
    if size not in FAST_SIZES:
        return f"hidden size {size}; only those that apex lists, the nearest is {_nearest(size)}"
    return _one_dtype(request) or _missing("fast_layer_norm", "--fast_layer_norm")


def _apex(request: NormRequest) -> str:
    return _one_dtype(request) or _missing("fused_layer_norm_cuda", "--cuda_ext")


def _triton(request: NormRequest) -> str:
    if request.hidden_size > LONGEST_ROW:
        return f"hidden size {request.hidden_size}; at most {LONGEST_ROW}"
    return triton_requirements.unsupported_reason(request)


def _one_dtype(request: NormRequest) -> str:
    """Return the reason against the dtypes, or "": of mixed ones apex returns the weight's dtype, and torch raises."""
    if request.dtype not in triton_requirements.DTYPES:
        return f"dtype {request.dtype}; only float32, float16, bfloat16"
    if request.weight_dtype != request.dtype:
        return f"weights in {request.weight_dtype} for {request.dtype}; only both in one dtype"
    return ""


def _nearest(size: int) -> int:
    return min(FAST_SIZES, key=lambda listed: abs(listed - size))


def _missing(extension: str, flag: str) -> str:
    """Probe the extension itself: apex can be built without it."""
    missing = [module for module in (extension, "apex") if not installed.has(module)]
    if not missing:
        return ""
    return Absent(
        f"{missing[0]} is not installed; apex (github.com/NVIDIA/apex) brings it when it is built with {flag}"
    )
