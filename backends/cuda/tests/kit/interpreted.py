"""The cuda backend's kernels as a backend that the conformance kit can test here.

Without a GPU the device is the CPU, and conftest.py has Triton interpret the kernels; with one it is the GPU.
"""

from __future__ import annotations

import torch

from pretrain.cpu.backend import CpuBackend
from pretrain.plugins import hookimpl
from pretrain_cuda.backend import CudaBackend
from pretrain_cuda.plugin import (
    pretrain_activation,
    pretrain_bias_dropout_add,
    pretrain_cross_entropy,
    pretrain_norm,
    pretrain_rotary,
    pretrain_softmax,
)

__all__ = [
    "pretrain_activation",
    "pretrain_bias_dropout_add",
    "pretrain_cross_entropy",
    "pretrain_norm",
    "pretrain_rotary",
    "pretrain_softmax",
]


class Interpreted(CpuBackend):
    """The CPU, also on a machine with a GPU."""

    name = "cuda-interpreted"


@hookimpl
def pretrain_backend():
    return CudaBackend() if torch.cuda.is_available() else Interpreted()
