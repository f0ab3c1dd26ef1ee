"""Limits of torch's `scaled_mm`: which quantization on which GPU, from what CUDA on, and for which sizes.

Those of torch 2.13's aten/src/ATen/native/cuda/ScaledBlas.cpp, and of the cases in its test/test_scaled_matmul_cuda.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pretrain.plugins import installed
from pretrain.plugins.offer import Absent
from pretrain.reference.quantization import GROUPS
from pretrain_cuda.devices import ADA, HOPPER, architecture_not_known, architecture_of

if TYPE_CHECKING:
    from pretrain.plugins.requests import LinearRequest

MAJORS = {"tensorwise": (8, 9, 10, 12), "rowwise": (8, 9, 10), "block": (9,), "mxfp8": (10,)}
"""Major compute capabilities with a quantization; of 8.x only 8.9. Rows failed on 12.x (pytorch/pytorch#192707)."""

LEAST_CUDA = {"block": (12, 9), "mxfp8": (12, 8)}
"""CUDA whose cuBLAS has a quantization; the others are in all that torch with `scaled_mm` is built for."""


def unsupported_reason(request: LinearRequest) -> str:
    """Return why `scaled_mm` cannot multiply the operands of a request; "" if it can."""
    if not request.quantization:
        return f"no quantization; only {', '.join(MAJORS)}"
    if not hasattr(torch.nn.functional, "scaled_mm"):
        return Absent(f"torch {torch.__version__} has no torch.nn.functional.scaled_mm; 2.10 has")
    if request.dtype is not torch.bfloat16:
        return f"dtype {request.dtype}; only bf16"
    if not installed.has("triton"):
        return Absent("triton, which rounds the operands, is not installed; torch for CUDA brings it on Linux")
    step = multiple(request.quantization)
    odd = next((shape for shape in request.shapes if shape[0] % step or shape[1] % step), None)
    if odd:
        return f"a weight of {odd[0]} x {odd[1]}; only multiples of {step}"
    return _unsupported_here(request.quantization, request.device_name)


def _unsupported_here(kind: str, device: str) -> str:
    architecture = architecture_of(device)
    if architecture is None:
        return architecture_not_known(device)
    if architecture < ADA:
        return Absent(f"compute capability {architecture}; only {ADA} and later multiply in fp8")
    if architecture.major not in MAJORS[kind]:
        allowed = ", ".join(str(ADA) if major == ADA.major else f"{major}.x" for major in MAJORS[kind])
        return f"quantization {kind} on compute capability {architecture}; only on {allowed}"
    least = LEAST_CUDA.get(kind, (0, 0))
    if not _has_cuda(least):
        return f"quantization {kind} with CUDA {torch.version.cuda}; only from {least[0]}.{least[1]} on"
    return ""


def multiple(kind: str) -> int:
    """Return what the summed dimension is a multiple of: a group of scales, or the 16 bytes that are read at once."""
    return GROUPS.get(kind, 16)


def sum_dtype(request: LinearRequest) -> torch.dtype:
    """Return the dtype in which a weight gradient comes out of the matmul, on its way to the main gradient.

    fp32 where that is fp32 and torch's tests have such an output: not of mxfp8, nor of rows in CUTLASS's kernels.
    """
    by_cublas = architecture_of(request.device_name) == HOPPER and _has_cuda((12, 9))
    has_fp32 = {"tensorwise": True, "rowwise": by_cublas, "block": True, "mxfp8": False}[request.quantization]
    return torch.float32 if has_fp32 and request.main_grad_dtype is torch.float32 else request.dtype


def _has_cuda(least: tuple[int, int]) -> bool:
    """Return whether torch is built for so new a CUDA; True for a torch without CUDA, which plans for a device."""
    built = torch.version.cuda
    return built is None or tuple(map(int, built.split(".")[:2])) >= least
