"""Requirements of every Triton kernel of this backend: dtype, compute capability, triton itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pretrain.plugins import installed
from pretrain.plugins.offer import Absent
from pretrain_cuda import devices
from pretrain_cuda.devices import AMPERE

if TYPE_CHECKING:
    from pretrain.plugins.requests import Request

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def unsupported_reason(request: Request) -> str:
    """Return the reason that no Triton kernel serves the request (dtype, device or triton itself), or ""."""
    if request.dtype not in DTYPES:
        return f"dtype {request.dtype}; only {', '.join(str(dtype).removeprefix('torch.') for dtype in DTYPES)}"
    architecture = devices.architecture_of(request.device_name)
    if architecture is not None and architecture < AMPERE:
        return Absent(f"compute capability {architecture}; triton compiles for {AMPERE} and later")
    if not installed.has("triton"):
        return Absent("triton is not installed; pip install triton (torch for CUDA brings it on Linux)")
    return ""


def provider() -> str:
    """Return triton and its version."""
    return installed.provider("triton")
