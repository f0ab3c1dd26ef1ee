"""Linears of experts by torch's grouped matmul, which reads the counts on the device.

Transformer Engine's GroupedLinear is not offered: a module that owns its weights, and is given the counts by the host.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from pretrain.plugins import installed
from pretrain.plugins.offer import Absent, offer_unless
from pretrain_cuda.devices import BLACKWELL, HOPPER, architecture_not_known, architecture_of

if TYPE_CHECKING:
    from pretrain.plugins.offer import Answer
    from pretrain.plugins.requests import GroupedLinearRequest

NAME = "torch"
MULTIPLE = 8
"""Entries of bf16 in 16 bytes, in which the kernel reads."""
MOST_EXPERTS = 1023
_FAST = {HOPPER.major, BLACKWELL.major}


def answers(request: GroupedLinearRequest) -> Answer:
    """Return torch's kernel, or the reason against it; the reference comes after."""
    return offer_unless(
        _unsupported_reason(request),
        name=NAME,
        build=lambda _: import_module("pretrain_cuda.kernels.grouped_matmul").grouped_linear,
        provider=installed.provider("torch"),
        fake=lambda _: _fake(),
    )


def _fake() -> Any:
    return import_module("pretrain_cuda.kernels.stand_ins.grouped_linear").grouped_matmul


def _unsupported_reason(request: GroupedLinearRequest) -> str:
    """Limits of torch 2.13's aten/src/ATen/native/cuda/GroupedBlas.cpp and GroupMM.cu.

    Elsewhere it calls a matmul for each expert after the host has read the counts, as the reference does.
    """
    if request.quantization:
        return f"quantization {request.quantization}; only without"
    if request.dtype is not torch.bfloat16:
        return f"dtype {request.dtype}; only bf16"
    for name in ("hidden_size", "ffn_hidden_size"):
        if getattr(request, name) % MULTIPLE:
            return f"{name} {getattr(request, name)}; only multiples of {MULTIPLE}"
    if request.experts > MOST_EXPERTS:
        return f"{request.experts} experts; at most {MOST_EXPERTS}"
    return _missing(request.device_name)


def _missing(device: str) -> str:
    if not hasattr(torch.nn.functional, "grouped_mm"):
        return Absent(f"torch {torch.__version__} has no torch.nn.functional.grouped_mm; 2.10 has")
    architecture = architecture_of(device)
    if architecture is None:
        return architecture_not_known(device)
    if architecture.major not in _FAST:
        return Absent(f"compute capability {architecture}; only {HOPPER} and {BLACKWELL.major}.x")
    return ""
